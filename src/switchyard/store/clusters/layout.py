"""Queries about the layout of clusters: the layout of a server's file, and values that were set at run time."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import layout


class LayoutRow(StoredRow, frozen=True):
    """One value over the layout of the file. No value: it is removed, even if the file has it."""

    part: str
    name: str
    value: str | None
    etag: str
    changed_us: int
    changed_by: str


def layout_all(tx: Tx) -> list[LayoutRow]:
    return fetch_all(tx, LayoutRow, sa.select(layout).order_by(layout.c.part, layout.c.name))


def layout_get(tx: Tx, part: str, name: str) -> LayoutRow | None:
    return fetch_one(tx, LayoutRow, sa.select(layout).where(layout.c.part == part, layout.c.name == name))


def layout_put(tx: Tx, row: LayoutRow) -> None:
    """Insert or replace a value."""
    columns = asdict(row)
    new = dialect.insert_statement(tx, layout).values(**columns)
    del columns["part"], columns["name"]
    tx.execute(new.on_conflict_do_update(index_elements=["part", "name"], set_=columns))


def layout_delete(tx: Tx, part: str, name: str) -> None:
    """Delete a value: the layout of the file applies again."""
    tx.execute(sa.delete(layout).where(layout.c.part == part, layout.c.name == name))


def layout_count(tx: Tx) -> int:
    return tx.execute(sa.select(sa.func.count()).select_from(layout)).scalar_one()
