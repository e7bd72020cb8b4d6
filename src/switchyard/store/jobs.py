"""Queries about jobs: put, get, list, lock, change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Integer, Text

from switchyard.model.ids import LENGTH
from switchyard.store import dialect, page_limit
from switchyard.store.database import Tx
from switchyard.store.job_columns import readable_row
from switchyard.store.schema import (
    EXPIRING,
    HAS_LATE_TIME,
    HAS_WAKE_TIME,
    ROUTABLE,
    attempts,
    clusters,
    dependencies,
    idempotency,
    jobs,
    policies,
    specs,
    verdict_sets,
)

Row = sa.Row[*tuple[Any, ...]]

UNNEST_ROWS_MIN = 32  # rows; below, PostgreSQL takes a statement per row as fast
IDS_PER_STATEMENT_MAX = 10_000  # ids in one statement: SQLite takes 32,766 parameters, PostgreSQL 65,535

_WITH_CLUSTER = jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id)
_COLUMNS_WITH_CLUSTER = (*jobs.c, clusters.c.name.label("cluster"))


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list. `projects`: those the reader may view; none: all. `reader`: whose own jobs are listed too."""

    states: Sequence[str] = ()
    cluster: str | None = None
    project: str | None = None
    domain: str | None = None
    owner: str | None = None
    owner_id: str | None = None
    workflow: str | None = None
    launch_plan: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    projects: Sequence[str] | None = None
    reader: str | None = None
    ids: Sequence[str] = ()
    oldest: str | None = None  # no id below this one


def spec_put(tx: Tx, bodies: dict[str, str], *, at_us: int) -> None:
    _put_shared(tx, specs, bodies, at_us)


def spec_get(tx: Tx, hash_: str) -> str:
    body: str = tx.execute(sa.select(specs.c.body).where(specs.c.hash == hash_)).scalar_one()
    return body


def policy_put(tx: Tx, bodies: dict[str, str], *, at_us: int) -> None:
    _put_shared(tx, policies, bodies, at_us)


def policy_get(tx: Tx, hash_: str) -> str | None:
    found: str | None = tx.execute(sa.select(policies.c.body).where(policies.c.hash == hash_)).scalar()
    return found


def spec_get_many(tx: Tx, hashes: Iterable[str]) -> dict[str, str]:
    """Specs by their hashes, in one query."""
    query = sa.select(specs.c.hash, specs.c.body).where(specs.c.hash.in_(sorted(set(hashes))))
    return {row.hash: row.body for row in tx.execute(query)}


def verdicts_put(tx: Tx, bodies: dict[str, str], *, at_us: int) -> None:
    _put_shared(tx, verdict_sets, bodies, at_us)


def _put_shared(tx: Tx, table: sa.Table, bodies: dict[str, str], at_us: int) -> None:
    """Put what is not there, and note that it is used: what was put lately is not cleaned up (store/retention.py)."""
    if bodies:
        insert = dialect.insert_statement(tx, table)
        put = insert.on_conflict_do_update(index_elements=["hash"], set_={"used_us": insert.excluded.used_us})
        tx.execute(put, [{"hash": key, "body": bodies[key], "used_us": at_us} for key in sorted(bodies)])


def verdicts_get(tx: Tx, hash_: str) -> str | None:
    found: str | None = tx.execute(sa.select(verdict_sets.c.body).where(verdict_sets.c.hash == hash_)).scalar()
    return found


def idempotency_claim(tx: Tx, rows: list[dict[str, Any]]) -> dict[tuple[str, str], Row]:
    """Claim idempotency keys; for each the row that holds it now, ours or an earlier one."""
    ordered = sorted(rows, key=lambda row: (row["owner"], row["key"]))
    dialect.insert_missing(tx, idempotency, ordered)
    wanted = sa.tuple_(idempotency.c.owner, idempotency.c.key).in_([(row["owner"], row["key"]) for row in ordered])
    return {(row.owner, row.key): row for row in tx.execute(sa.select(idempotency).where(wanted))}


def idempotency_get(tx: Tx, owner: str, key: str) -> Row | None:
    query = sa.select(idempotency).where(idempotency.c.owner == owner, idempotency.c.key == key)
    return tx.execute(query).one_or_none()


def idempotency_clean(tx: Tx, *, before_us: int, limit: int) -> int:
    old = sa.select(idempotency.c.owner, idempotency.c.key).where(idempotency.c.created_us < before_us).limit(limit)
    gone = sa.delete(idempotency).where(sa.tuple_(idempotency.c.owner, idempotency.c.key).in_(old))
    return tx.execute(gone).rowcount


def job_insert_many(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Ids are made by us: a row that is there already is this very write, committed by an earlier try.

    The driver's own form: Core's handling of 33 parameters a row costs more than SQLite's insert.
    """
    for names in (_COMMON_COLUMNS, _ALL_COLUMNS):
        some = [
            tuple(map(row.get, names))
            for row in rows
            if (len(row) == len(_COMMON_COLUMNS)) == (names is _COMMON_COLUMNS)
        ]
        if not some:
            continue
        if dialect.is_postgresql(tx) and len(some) >= UNNEST_ROWS_MIN:
            tx.exec_driver_sql(_insert_unnest_sql(names), tuple(list(column) for column in zip(*some, strict=True)))
        else:
            tx.exec_driver_sql(_insert_values_sql(names, "%s" if dialect.is_postgresql(tx) else "?"), some)


_ALL_COLUMNS = tuple(column.name for column in jobs.c)
# What every new job has; most have nothing else, and binding twice as many values would cost twice as much.
_COMMON_COLUMNS = (
    "id",
    "seq",
    "name",
    "owner",
    "owner_id",
    "project",
    "domain",
    "lane",
    "state",
    "reason",
    "priority",
    "labels",
    "spec_hash",
    "bounds",
    "plan_hash",
    "policy_hash",
    "cores",
    "gpus",
    "memory_bytes",
    "on_lost",
    "cluster_id",
    "attempt",
    "fence",
    "created_us",
    "assigned_us",
    "is_ready",
    "tries",
    "retries",
)


@cache
def _insert_values_sql(names: tuple[str, ...], mark: str) -> str:
    return f"{_insert_into(names)} VALUES ({', '.join(mark for _ in names)}) ON CONFLICT DO NOTHING"


@cache
def _insert_unnest_sql(names: tuple[str, ...]) -> str:
    """One array per column, in the binary form: half the time of a statement per row from some dozens on."""
    kinds = {Text: "text", BigInteger: "int8", Integer: "int4", Boolean: "bool"}
    arrays = ", ".join(f"%b::{kinds[type(jobs.c[name].type)]}[]" for name in names)
    return f"{_insert_into(names)} SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"


def _insert_into(names: tuple[str, ...]) -> str:
    return 'INSERT INTO jobs ("' + '", "'.join(names) + '")'  # `array` is a word of PostgreSQL's own


def job_get(tx: Tx, job_id: str) -> Row | None:
    """One job with its spec and its cluster's name."""
    query = (
        sa.select(*_COLUMNS_WITH_CLUSTER, specs.c.body.label("spec"))
        .select_from(_WITH_CLUSTER.outerjoin(specs, specs.c.hash == jobs.c.spec_hash))
        .where(jobs.c.id == job_id)
    )
    return tx.execute(query).one_or_none()


def job_states(tx: Tx, job_ids: Sequence[str]) -> dict[str, Row]:
    query = (
        sa.select(
            jobs.c.id, jobs.c.state, jobs.c.reason, jobs.c.owner_id, jobs.c.project, clusters.c.name.label("cluster")
        )
        .select_from(_WITH_CLUSTER)
        .where(jobs.c.id.in_(job_ids))
    )
    return {row.id: row for row in tx.execute(query)}


def job_ids_by_prefix(tx: Tx, prefix: str, *, projects: Sequence[str] | None = None, reader: str = "") -> list[str]:
    """Up to two, of the jobs that a reader may view: those of others make no prefix ambiguous."""
    # A range on the primary key: LIKE would not use it on every collation, and only digits and letters sort the same
    # in all of them, so the upper end is the highest id with this prefix.
    within = jobs.c.id.between(prefix, prefix.ljust(LENGTH, "Z"))
    query = sa.select(jobs.c.id).where(within).order_by(jobs.c.id).limit(2)
    if projects is not None:
        query = query.where(sa.or_(jobs.c.project.in_(projects), jobs.c.owner_id == reader))
    return list(tx.execute(query).scalars())


def job_list(
    tx: Tx, wanted: JobFilter, *, before: str | None, limit: int, budget: int, with_spec: bool
) -> tuple[list[Row], str | None]:
    """Newest first, looking at no more than `budget` rows; the last id looked at if there may be more.

    Filters on unindexed columns look at a window of the primary key, so a rare label at a million jobs costs a bounded
    time per page instead of a scan.
    """
    window = sa.select(jobs.c.id).order_by(jobs.c.id.desc()).limit(budget)
    if before is not None:
        window = window.where(jobs.c.id < before)
    if wanted.ids:
        window = window.where(jobs.c.id.in_(wanted.ids))
    if wanted.oldest is not None:
        window = window.where(jobs.c.id >= wanted.oldest)
    edge = tx.execute(sa.select(sa.func.min(window.subquery().c.id), sa.func.count())).one()
    lowest, looked_at = edge
    if lowest is None:
        return [], None
    source = _WITH_CLUSTER.outerjoin(specs, specs.c.hash == jobs.c.spec_hash) if with_spec else _WITH_CLUSTER
    columns = (*_COLUMNS_WITH_CLUSTER, specs.c.body.label("spec")) if with_spec else _COLUMNS_WITH_CLUSTER
    query = sa.select(*columns).select_from(source).where(jobs.c.id >= lowest, *_conditions(wanted))
    if before is not None:
        query = query.where(jobs.c.id < before)
    limit = page_limit.limit_by_spec_bytes(tx, query, limit) if with_spec else limit
    rows = list(tx.execute(query.order_by(jobs.c.id.desc()).limit(limit + 1)))
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].id
    return rows, lowest if looked_at == budget else None


def _conditions(wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if wanted.ids:
        found.append(jobs.c.id.in_(wanted.ids))
    if wanted.states:
        found.append(jobs.c.state.in_(wanted.states))
    for column, value in (
        (clusters.c.name, wanted.cluster),
        (jobs.c.project, wanted.project),
        (jobs.c.domain, wanted.domain),
        (jobs.c.owner, wanted.owner),
        (jobs.c.owner_id, wanted.owner_id),
        (jobs.c.workflow, wanted.workflow),
        (jobs.c.launch_plan, wanted.launch_plan),
    ):
        if value is not None:
            found.append(column == value)
    if wanted.projects is not None:
        found.append(sa.or_(jobs.c.project.in_(wanted.projects), jobs.c.owner_id == (wanted.reader or "")))
    for key, value in sorted(wanted.labels.items()):
        found.append(_has_label(key, value))
    return found


def _has_label(key: str, value: str) -> sa.ColumnElement[bool]:
    """Labels are stored as canonical JSON, so a pair is found by its own text."""
    pair = f"{json.dumps(key, ensure_ascii=False)}:{json.dumps(value, ensure_ascii=False)}"
    # Not LIKE, which ignores case on SQLite: where taking the pair out changes the text, it was there.
    return sa.func.replace(jobs.c.labels, pair, "") != jobs.c.labels


# Built once, as `_change` below: making a statement anew costs more than running it.
_LOCK = sa.select(jobs).where(jobs.c.id.in_(sa.bindparam("ids", expanding=True))).order_by(jobs.c.id).with_for_update()


def job_lock(tx: Tx, job_ids: Iterable[str]) -> dict[str, Row]:
    """Lock jobs for change, in id order: two replicas that lock in arrival order deadlock.

    Columns that cannot be read are replaced (`readable_row`): every job can be ended, whatever its row says.
    """
    ids = sorted(set(job_ids))
    found: dict[str, Row] = {}
    for start in range(0, len(ids), IDS_PER_STATEMENT_MAX):
        rows = tx.execute(_LOCK, {"ids": ids[start : start + IDS_PER_STATEMENT_MAX]})
        found |= {row.id: readable_row(row) for row in rows}
    return found


def job_update_many(tx: Tx, changes: dict[str, dict[str, Any]]) -> None:
    """Apply changes to locked jobs, in one statement per set of columns."""
    by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for job_id in sorted(changes):
        change = changes[job_id]
        by_columns.setdefault(tuple(sorted(change)), []).append({"the_id": job_id} | change)
    for columns, rows in by_columns.items():
        tx.execute(_update_statement(columns), rows)


@lru_cache(maxsize=256)
def _update_statement(columns: tuple[str, ...]) -> sa.Update:
    statement = sa.update(jobs).where(jobs.c.id == sa.bindparam("the_id"))
    return statement.values({name: sa.bindparam(name) for name in columns})


_TOKEN_COLUMNS = (
    jobs.c.tokens,
    jobs.c.project,
    jobs.c.domain,
    jobs.c.lane,
    jobs.c.priority,
    jobs.c.created_us,
    jobs.c.array,
    jobs.c.array_max,
)


def job_list_routable(tx: Tx, *, after: str, limit: int) -> list[Row]:
    """PENDING jobs in arrival order, with what the router asks about them."""
    asked = (jobs.c.id, jobs.c.owner, jobs.c.owner_id, jobs.c.bounds, jobs.c.avoid, jobs.c.reason, jobs.c.spec_hash)
    query = (
        sa.select(*asked, jobs.c.waits_us, *_TOKEN_COLUMNS)
        .where(sa.text(ROUTABLE), jobs.c.id > after)
        .order_by(jobs.c.id)
        .limit(limit)
    )
    return list(tx.execute(query))


def job_ids_backoff_over(tx: Tx, *, now_us: int, limit: int) -> list[str]:
    """Jobs whose back-off is over."""
    query = (
        sa.select(jobs.c.id)
        .where(sa.text(HAS_WAKE_TIME), jobs.c.wake_us <= now_us)
        .order_by(jobs.c.wake_us)
        .limit(limit)
    )
    return list(tx.execute(query).scalars())


def job_ids_expired(tx: Tx, *, now_us: int, limit: int) -> list[str]:
    """Jobs that have not begun and should have by now."""
    query = sa.select(jobs.c.id).where(sa.text(EXPIRING), jobs.c.expires_us <= now_us)
    return list(tx.execute(query.order_by(jobs.c.expires_us).limit(limit)).scalars())


def job_ids_late(tx: Tx, *, now_us: int, limit: int) -> list[str]:
    """Jobs that have not begun and whose queueing budget is spent."""
    query = sa.select(jobs.c.id).where(sa.text(HAS_LATE_TIME), jobs.c.late_from_us <= now_us)
    return list(tx.execute(query.order_by(jobs.c.late_from_us).limit(limit)).scalars())


def dependency_insert(tx: Tx, rows: list[dict[str, Any]]) -> None:
    dialect.insert_missing(tx, dependencies, sorted(rows, key=lambda row: (row["job_id"], row["on_id"])))


def dependency_list_settled(tx: Tx, *, limit: int) -> list[Row]:
    """What waits for a job that has ended, or (no state) that was removed before anybody looked.

    Owners of the waiting jobs take turns: the first of each owner, then the second of each, and so on.
    """
    is_over = jobs.c.state.in_(("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED"))
    waiting = jobs.alias("waiting")
    both = dependencies.outerjoin(jobs, jobs.c.id == dependencies.c.on_id)
    turn = sa.func.row_number().over(partition_by=waiting.c.owner_id, order_by=dependencies.c.job_id)
    query = (
        sa.select(dependencies, jobs.c.state)
        .select_from(both.outerjoin(waiting, waiting.c.id == dependencies.c.job_id))
        .where(sa.or_(is_over, jobs.c.id.is_(None)))
        .order_by(turn)
        .limit(limit)
    )
    return list(tx.execute(query))


def dependency_delete(tx: Tx, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        both = sa.tuple_(dependencies.c.job_id, dependencies.c.on_id)
        tx.execute(sa.delete(dependencies).where(both.in_(pairs)))


def dependency_clear(tx: Tx, job_ids: list[str]) -> None:
    if job_ids:
        tx.execute(sa.delete(dependencies).where(dependencies.c.job_id.in_(job_ids)))


def dependency_remaining(tx: Tx, job_ids: list[str]) -> set[str]:
    """Which of these still wait for something."""
    query = sa.select(dependencies.c.job_id).where(dependencies.c.job_id.in_(sorted(job_ids))).distinct()
    return set(tx.execute(query).scalars())


def dependency_list(tx: Tx, job_id: str) -> list[Row]:
    query = sa.select(dependencies).where(dependencies.c.job_id == job_id).order_by(dependencies.c.on_id)
    return list(tx.execute(query))


def attempt_archive(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Keep an attempt that is over while its job goes on."""
    dialect.insert_missing(tx, attempts, rows)


def attempt_list(tx: Tx, job_id: str) -> list[Row]:
    named = attempts.outerjoin(clusters, clusters.c.id == attempts.c.cluster_id)
    query = sa.select(attempts, clusters.c.name.label("cluster")).select_from(named)
    return list(tx.execute(query.where(attempts.c.job_id == job_id).order_by(attempts.c.fence)))
