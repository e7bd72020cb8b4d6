"""Queries about the objects of namespaces: what each project and domain gets, and what agents report."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.schema import namespace_reports, namespace_resources, renders


class NewNamespaceRow(StoredRow, frozen=True):
    """The same as it is written. `digest` and `body` none: they keep their values, or are empty in a new row."""

    project: str
    domain: str
    namespace: str
    inputs: str
    digest: str | None
    body: str | None
    mistake: str


class NamespaceReportRow(StoredRow, frozen=True):
    """An agent's report on one namespace."""

    cluster_id: str
    namespace: str
    digest: str
    body: str
    at_us: int


def namespace_body(tx: Tx, *, project: str, domain: str) -> tuple[str, str] | None:
    """Return the digest and the objects of a project's namespace in a domain."""
    query = sa.select(namespace_resources.c.digest, namespace_resources.c.body)
    row = tx.execute(
        query.where(namespace_resources.c.project == project, namespace_resources.c.domain == domain)
    ).one_or_none()
    return None if row is None else (row.digest, row.body)


def namespace_put(tx: Tx, rows: Sequence[NewNamespaceRow], *, at_us: int) -> None:
    """Store these rows in place of earlier ones."""
    for row in rows:
        columns = {name: value for name, value in asdict(row).items() if value is not None} | {"at_us": at_us}
        new = dialect.insert_statement(tx, namespace_resources).values({"digest": "", "body": ""} | columns)
        changed = {name: value for name, value in columns.items() if name not in ("project", "domain")}
        tx.execute(new.on_conflict_do_update(index_elements=["project", "domain"], set_=changed))


def namespace_delete(tx: Tx, keys: Collection[tuple[str, str]]) -> None:
    for project, domain in keys:
        tx.execute(
            sa.delete(namespace_resources).where(
                namespace_resources.c.project == project, namespace_resources.c.domain == domain
            )
        )


def report_put(tx: Tx, rows: Sequence[NamespaceReportRow]) -> None:
    for row in rows:
        columns = {"digest": row.digest, "body": row.body, "at_us": row.at_us}
        new = dialect.insert_statement(tx, namespace_reports).values(**asdict(row))
        tx.execute(new.on_conflict_do_update(index_elements=["cluster_id", "namespace"], set_=columns))


def report_delete(tx: Tx, cluster_id: str, namespaces: Collection[str]) -> None:
    tx.execute(
        sa.delete(namespace_reports).where(
            namespace_reports.c.cluster_id == cluster_id, namespace_reports.c.namespace.in_(list(namespaces))
        )
    )


def report_list(tx: Tx, cluster_ids: Collection[str], namespaces: Collection[str]) -> list[NamespaceReportRow]:
    """Return the reports of these clusters on these namespaces."""
    query = sa.select(*columns_of(NamespaceReportRow, namespace_reports)).where(
        namespace_reports.c.cluster_id.in_(list(cluster_ids)), namespace_reports.c.namespace.in_(list(namespaces))
    )
    return fetch_all(tx, NamespaceReportRow, query)


def report_namespaces(tx: Tx, cluster_ids: Collection[str]) -> set[str]:
    """Return all namespaces that these clusters have reported."""
    query = sa.select(namespace_reports.c.namespace).where(namespace_reports.c.cluster_id.in_(list(cluster_ids)))
    return set(tx.execute(query.distinct()).scalars())


def render_put(tx: Tx, *, project: str, domain: str, body: str, at_us: int) -> None:
    """Store a rendering in place of the earlier one."""
    key = {"project": project, "domain": domain}
    columns = {"body": body, "at_us": at_us}
    new = dialect.insert_statement(tx, renders).values(**key, **columns)
    tx.execute(new.on_conflict_do_update(index_elements=list(key), set_=columns))


def render_get(tx: Tx, *, project: str, domain: str) -> str | None:
    query = sa.select(renders.c.body).where(renders.c.project == project, renders.c.domain == domain)
    return tx.execute(query).scalar_one_or_none()
