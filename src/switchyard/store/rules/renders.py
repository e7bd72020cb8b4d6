"""Queries about rendered cluster resources: the last rendering of each project and domain."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.tables.schema import renders


def render_put(tx: Tx, *, project: str, domain: str, body: str, at_us: int) -> None:
    """Store a rendering in place of the earlier one."""
    key = {"project": project, "domain": domain}
    columns = {"body": body, "at_us": at_us}
    new = dialect.insert_statement(tx, renders).values(**key, **columns)
    tx.execute(new.on_conflict_do_update(index_elements=list(key), set_=columns))


def render_get(tx: Tx, *, project: str, domain: str) -> str | None:
    query = sa.select(renders.c.body).where(renders.c.project == project, renders.c.domain == domain)
    return tx.execute(query).scalar_one_or_none()
