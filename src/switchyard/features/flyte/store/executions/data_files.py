"""Queries about files that Flyte's clients upload, and about the addresses that were given out for them."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.tables.executions_tables import data_files, data_grants
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_one

EXPIRED_REMOVED_MAX = 1000  # in one statement


class DataFileRow(StoredRow, frozen=True):
    """A stored file. `tree`: a tree that has it as its only file."""

    project: str
    domain: str
    path: str
    md5: bytes
    size: int
    tree: bytes
    owner_id: str
    stored_us: int


class DataGrantRow(StoredRow, frozen=True):
    """An address. `verb`: PUT or GET. `md5` empty: any content may come."""

    token_hash: bytes
    verb: str
    project: str
    domain: str
    path: str
    md5: bytes
    owner_id: str
    expires_us: int


def data_file_get(tx: Tx, project: str, domain: str, path: str) -> DataFileRow | None:
    files = data_files.c
    query = sa.select(*columns_of(DataFileRow, data_files)).where(
        files.project == project, files.domain == domain, files.path == path
    )
    return fetch_one(tx, DataFileRow, query)


def data_file_put(tx: Tx, row: DataFileRow) -> bool:
    """Store a file. Returns False if its path is taken."""
    put = dialect.insert_statement(tx, data_files).values(**asdict(row)).on_conflict_do_nothing()
    return tx.execute(put.returning(data_files.c.path)).scalar() is not None


def grant_put(tx: Tx, row: DataGrantRow, *, now_us: int) -> None:
    """Store an address, and forget some that are over."""
    over = sa.select(data_grants.c.token_hash).where(data_grants.c.expires_us < now_us).limit(EXPIRED_REMOVED_MAX)
    tx.execute(sa.delete(data_grants).where(data_grants.c.token_hash.in_(over)))
    tx.execute(sa.insert(data_grants).values(**asdict(row)))


def grant_get(tx: Tx, token_hash: bytes) -> DataGrantRow | None:
    query = sa.select(*columns_of(DataGrantRow, data_grants)).where(data_grants.c.token_hash == token_hash)
    return fetch_one(tx, DataGrantRow, query)


def grant_delete(tx: Tx, token_hash: bytes) -> bool:
    """Use an address up. Returns False if that has happened before."""
    delete = sa.delete(data_grants).where(data_grants.c.token_hash == token_hash)
    return tx.execute(delete.returning(data_grants.c.token_hash)).scalar() is not None
