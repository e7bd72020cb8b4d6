"""Queries about cached outputs of tasks, and about nodes that wait for each other because of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.features.flyte.store.tables.executions_tables import (
    cache_reservations,
    cache_waits,
    execution_nodes,
    task_cache,
)
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all

TRIM_MAX = 20  # entries that one insert removes, besides as many as it adds
IDS_PER_QUERY = 500


class CacheRow(StoredRow, frozen=True):
    """The outputs of a task under one key."""

    key: bytes
    project: str
    outputs: bytes
    source: str
    stored_us: int


def cache_get(tx: Tx, keys: Sequence[bytes]) -> dict[bytes, CacheRow]:
    query = sa.select(*columns_of(CacheRow, task_cache)).where(task_cache.c.key.in_(keys))
    return {bytes(row.key): row for row in fetch_all(tx, CacheRow, query)}


def cache_put(tx: Tx, rows: Sequence[CacheRow], *, entries_max: int, stored_after_us: int) -> None:
    """Store outputs of one project, or replace older ones. Entries of the project that are too old or too many go, some
    at a time."""
    new = {row.key: row for row in rows}  # one statement may not change a row twice
    put = dialect.insert_statement(tx, task_cache)
    changes = {name: put.excluded[name] for name in ("project", "outputs", "source", "stored_us")}
    values = [asdict(new[key]) for key in sorted(new)]  # in one order: nobody waits for each other
    tx.execute(put.on_conflict_do_update(index_elements=["key"], set_=changes), values)
    columns = task_cache.c
    of_project = columns.project == rows[0].project
    beyond = sa.select(columns.stored_us).where(of_project).order_by(columns.stored_us.desc())
    last_us = tx.execute(beyond.offset(entries_max).limit(1)).scalar()
    before_us = max(stored_after_us, last_us if last_us is not None else stored_after_us)
    old = sa.select(columns.key).where(of_project, columns.stored_us <= before_us)
    keys = tx.execute(old.order_by(columns.stored_us).limit(TRIM_MAX + len(new))).scalars()
    if gone := [key for key in keys if bytes(key) not in new]:
        tx.execute(sa.delete(task_cache).where(columns.key.in_(gone)))


def reserved_keys(tx: Tx, keys: Sequence[bytes]) -> set[bytes]:
    """Those of these keys that a node holds which has not ended."""
    nodes, reservations = execution_nodes.c, cache_reservations.c
    is_holder = sa.and_(nodes.execution_id == reservations.execution_id, nodes.node_id == reservations.node_id)
    query = (
        sa.select(reservations.key)
        .join(execution_nodes, is_holder)
        .where(reservations.key.in_(keys), nodes.ended_us.is_(None))
    )
    return {bytes(key) for key in tx.execute(query).scalars()}


def holders(tx: Tx, execution_ids: Sequence[str]) -> set[tuple[str, str]]:
    """The nodes of these executions that hold keys: execution and node."""
    reservations = cache_reservations.c
    query = sa.select(reservations.execution_id, reservations.node_id).where(
        reservations.execution_id.in_(execution_ids)
    )
    return {(row.execution_id, row.node_id) for row in tx.execute(query)}


def reserve(tx: Tx, key: bytes, execution_id: str, node_id: str) -> None:
    """Hold a key for a node. The caller has seen that no other node holds it."""
    tx.execute(sa.delete(cache_reservations).where(cache_reservations.c.key == key))
    values = {"key": key, "execution_id": execution_id, "node_id": node_id}
    tx.execute(sa.insert(cache_reservations), [values])


def release(tx: Tx, execution_id: str, node_ids: Sequence[str]) -> None:
    reservations = cache_reservations.c
    for first in range(0, len(node_ids), IDS_PER_QUERY):
        page = node_ids[first : first + IDS_PER_QUERY]
        tx.execute(
            sa.delete(cache_reservations).where(
                reservations.execution_id == execution_id, reservations.node_id.in_(page)
            )
        )


def release_all(tx: Tx, execution_id: str) -> None:
    """The execution was given up: none of its nodes holds a key or waits for one."""
    tx.execute(sa.delete(cache_reservations).where(cache_reservations.c.execution_id == execution_id))
    wait_delete(tx, execution_id)


def wait_put(tx: Tx, execution_id: str, waits: Iterable[tuple[str, bytes]]) -> None:
    for node_id, key in waits:
        values = {"execution_id": execution_id, "node_id": node_id, "key": key}
        put = dialect.insert_statement(tx, cache_waits).values(**values)
        tx.execute(put.on_conflict_do_update(index_elements=["execution_id", "node_id"], set_={"key": key}))


def waits_over(tx: Tx, execution_id: str) -> list[str]:
    """The nodes of an execution that need not wait any more: nobody holds their keys."""
    return list(tx.execute(_WAITS_OVER, {"execution": execution_id}).scalars())


def wait_delete(tx: Tx, execution_id: str, node_ids: Sequence[str] | None = None) -> None:
    """Forget that these nodes wait. None: all of the execution."""
    statement = sa.delete(cache_waits).where(cache_waits.c.execution_id == execution_id)
    if node_ids is not None:
        statement = statement.where(cache_waits.c.node_id.in_(node_ids))
    tx.execute(statement)


# Built once: each step of an execution runs it.
_WAITS_OVER = sa.select(cache_waits.c.node_id).where(
    cache_waits.c.execution_id == sa.bindparam("execution"),
    sa.not_(sa.exists().where(cache_reservations.c.key == cache_waits.c.key)),
)
