"""Queries about the signals of executions: what their gates wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.page_bytes import keys_within, size_of
from switchyard.features.flyte.store.tables.executions_tables import execution_signals
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one

IDS_MAX = 500  # of one query


class SignalRow(StoredRow, frozen=True):
    """One signal. `value` is None until somebody gives one."""

    execution_id: str
    signal_id: str
    type: bytes
    value: bytes | None
    created_us: int
    set_us: int | None
    set_by: str


def signal_put(tx: Tx, rows: Iterable[SignalRow]) -> None:
    """Insert signals. One that is there stays as it is."""
    for row in rows:
        insert = dialect.insert_statement(tx, execution_signals).values(**asdict(row))
        tx.execute(insert.on_conflict_do_nothing())


def signal_get(tx: Tx, execution_id: str, signal_id: str) -> SignalRow | None:
    return fetch_one(tx, SignalRow, _of(execution_id).where(execution_signals.c.signal_id == signal_id))


def signal_count(tx: Tx, execution_id: str) -> int:
    query = sa.select(sa.func.count()).where(execution_signals.c.execution_id == execution_id)
    return int(tx.execute(query).scalar_one())


def signal_values(tx: Tx, execution_id: str, signal_ids: Collection[str]) -> dict[str, bytes]:
    """The values that were given for these signals."""
    values: dict[str, bytes] = {}
    signals = execution_signals.c
    wanted = sorted(signal_ids)
    for first in range(0, len(wanted), IDS_MAX):
        part = wanted[first : first + IDS_MAX]
        query = _of(execution_id).where(signals.signal_id.in_(part), signals.value.is_not(None))
        rows = fetch_all(tx, SignalRow, query)
        values |= {row.signal_id: bytes(row.value) for row in rows if row.value is not None}
    return values


def signal_page(
    tx: Tx, execution_id: str, *, is_descending: bool, offset: int, limit: int, bytes_max: int
) -> tuple[list[SignalRow], bool]:
    """Signals in the order of their creation, and whether more may follow. `bytes_max`: at least one comes."""
    signals = execution_signals.c
    by = [signals.created_us.desc(), signals.signal_id] if is_descending else [signals.created_us, signals.signal_id]
    query = sa.select(signals.signal_id, size_of(signals.type, signals.value))
    page = query.where(signals.execution_id == execution_id).order_by(*by).offset(offset).limit(limit)
    sizes = tx.execute(page).all()
    ids = keys_within(sizes, bytes_max)
    rows = fetch_all(tx, SignalRow, _of(execution_id).where(signals.signal_id.in_(ids)).order_by(*by))
    return rows, len(sizes) == limit or len(ids) < len(sizes)


def signal_set(tx: Tx, execution_id: str, signal_id: str, *, value: bytes, by: str, now_us: int) -> None:
    where = (execution_signals.c.execution_id == execution_id, execution_signals.c.signal_id == signal_id)
    tx.execute(sa.update(execution_signals).where(*where).values(value=value, set_us=now_us, set_by=by))


def _of(execution_id: str) -> sa.Select[tuple[object, ...]]:
    return sa.select(*columns_of(SignalRow, execution_signals)).where(execution_signals.c.execution_id == execution_id)
