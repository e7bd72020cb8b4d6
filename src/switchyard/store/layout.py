"""Queries about how clusters are laid out: the base that a server's file gave, and what was set at run time."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import layout

Row = sa.Row[*tuple[Any, ...]]


def layout_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(layout).order_by(layout.c.part, layout.c.name)))


def layout_get(tx: Tx, part: str, name: str) -> Row | None:
    return tx.execute(sa.select(layout).where(layout.c.part == part, layout.c.name == name)).one_or_none()


def layout_put(tx: Tx, part: str, name: str, columns: dict[str, Any]) -> None:
    """Create or replace; no value: it was removed, also where the base has it."""
    at = {"part": part, "name": name}
    new = dialect.insert_statement(tx, layout).values(**at, **columns)
    tx.execute(new.on_conflict_do_update(index_elements=list(at), set_=columns))


def layout_delete(tx: Tx, part: str, name: str) -> None:
    """The base holds again."""
    tx.execute(sa.delete(layout).where(layout.c.part == part, layout.c.name == name))


def layout_count(tx: Tx) -> int:
    return tx.execute(sa.select(sa.func.count()).select_from(layout)).scalar_one()
