"""Queries about the namespaces of projects, and the end of a cluster's reports on them."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.schema import namespace_reports, namespace_resources


class NamespaceRow(StoredRow, frozen=True):
    """The namespace of a project and domain, without its objects."""

    project: str
    domain: str
    namespace: str
    inputs: str
    digest: str
    mistake: str


def namespace_all(tx: Tx) -> list[NamespaceRow]:
    query = sa.select(*columns_of(NamespaceRow, namespace_resources))
    return fetch_all(tx, NamespaceRow, query.order_by(namespace_resources.c.project, namespace_resources.c.domain))


def report_delete_of(tx: Tx, cluster_id: str) -> None:
    """Delete all reports of a cluster."""
    tx.execute(sa.delete(namespace_reports).where(namespace_reports.c.cluster_id == cluster_id))
