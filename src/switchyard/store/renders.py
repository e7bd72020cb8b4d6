"""Queries about the last rendering of each project's and domain's cluster resources."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import renders


def render_put(tx: Tx, *, project: str, domain: str, body: str, at_us: int) -> None:
    """The last rendering; the one before is gone."""
    key = {"project": project, "domain": domain}
    said = {"body": body, "at_us": at_us}
    new = dialect.insert_statement(tx, renders).values(**key, **said)
    tx.execute(new.on_conflict_do_update(index_elements=list(key), set_=said))


def render_get(tx: Tx, *, project: str, domain: str) -> str | None:
    """The last rendering, as it was put."""
    found = sa.select(renders.c.body).where(renders.c.project == project, renders.c.domain == domain)
    return tx.execute(found).scalar_one_or_none()
