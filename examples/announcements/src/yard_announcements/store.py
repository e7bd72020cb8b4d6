"""The table of announcements, and all SQL about it."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.engine.metadata import metadata
from switchyard.store.feature import StoreFeature
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all

announcements = sa.Table(
    "announcements",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("said_us", sa.BigInteger, nullable=False),
)


class AnnouncementStore(StoreFeature):
    """Importing this module has given the metadata its table. Nothing else of the store concerns it."""


class AnnouncementRow(StoredRow, frozen=True):
    id: str
    text: str
    author: str
    said_us: int


def put(tx: Tx, row: AnnouncementRow) -> None:
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    tx.execute(sa.insert(announcements).values(**values))


def newest(tx: Tx, *, limit: int) -> list[AnnouncementRow]:
    query = sa.select(*columns_of(AnnouncementRow, announcements)).order_by(announcements.c.id.desc()).limit(limit)
    return fetch_all(tx, AnnouncementRow, query)


def delete_older(tx: Tx, *, before_us: int) -> int:
    return tx.execute(sa.delete(announcements).where(announcements.c.said_us < before_us)).rowcount
