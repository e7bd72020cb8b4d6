"""Queries about jobs, their specs, dependencies, attempts and idempotency keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict, astuple
from sqlalchemy import BigInteger, Boolean, Integer, Text

from switchyard.model.rules.queue import UNCOUNTED_PREFIX
from switchyard.model.wire.ids import LENGTH
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.engine.frequent_statement import FrequentStatement, driver_run
from switchyard.store.engine.new_rows import NewJobRow
from switchyard.store.jobs.fetch import columns_of, fetch_all, fetch_one
from switchyard.store.jobs.job_columns import readable_row
from switchyard.store.jobs.job_rows import (
    AttemptOnCluster,
    AttemptRow,
    DependencyRow,
    IdempotencyClaim,
    JobDetails,
    JobRow,
    JobStatus,
    RoutableJob,
    SettledDependency,
)
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.rules_tables import policies
from switchyard.store.tables.schema import (
    EXPIRING,
    FINAL_STATES,
    HAS_LATE_TIME,
    HAS_WAKE_TIME,
    ROUTABLE,
    attempts,
    dependencies,
    idempotency,
    jobs,
    ranges,
    specs,
    verdict_sets,
)

UNNEST_ROWS_MIN = 32  # rows; for fewer, PostgreSQL runs one statement per row as fast
IDS_PER_STATEMENT_MAX = 10_000  # SQLite takes 32,766 parameters in a statement, PostgreSQL 65,535

_WITH_CLUSTER = jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id)
_WITH_CLUSTER_AND_SPEC = _WITH_CLUSTER.outerjoin(specs, specs.c.hash == jobs.c.spec_hash)
_DETAILS = columns_of(JobDetails, jobs, cluster=clusters.c.name, spec=specs.c.body)
_DETAILS_WITHOUT_SPEC = columns_of(JobDetails, jobs, cluster=clusters.c.name, spec=sa.null())
SPECS_BYTES_MAX = 8 * 2**20


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list.

    `cluster`: a cluster's name. With `is_by_task`, arrays with tasks that are or were on the cluster are listed, too.
    `projects`: the projects that the reader may view; None: all. Jobs of the user `reader` are listed from any project.
    """

    states: Sequence[str] = ()
    cluster: str | None = None
    is_by_task: bool = False
    project: str | None = None
    domain: str | None = None
    owner: str | None = None
    owner_id: str | None = None
    workflow: str | None = None
    launch_plan: str | None = None
    queue: str | None = None
    text: str | None = None  # a part of the name, in any case
    labels: dict[str, str] = field(default_factory=dict)
    projects: Sequence[str] | None = None
    reader: str | None = None
    ids: Sequence[str] = ()
    oldest: str | None = None  # the lowest id


def spec_put(tx: Tx, bodies: dict[str, str], *, at_us: int) -> None:
    _put_shared(tx, specs, bodies, at_us)


def policy_put(tx: Tx, bodies: dict[str, str], *, at_us: int) -> None:
    _put_shared(tx, policies, bodies, at_us)


def policy_get(tx: Tx, hash_: str) -> str | None:
    body: str | None = tx.execute(sa.select(policies.c.body).where(policies.c.hash == hash_)).scalar()
    return body


def spec_get_many(tx: Tx, hashes: Iterable[str]) -> dict[str, str]:
    """Return specs by their hashes, in one query."""
    query = sa.select(specs.c.hash, specs.c.body).where(specs.c.hash.in_(sorted(set(hashes))))
    return {row.hash: row.body for row in tx.execute(query)}


def verdicts_put(tx: Tx, bodies: dict[str, str], *, at_us: int) -> None:
    _put_shared(tx, verdict_sets, bodies, at_us)


def _put_shared(tx: Tx, table: sa.Table, bodies: dict[str, str], at_us: int) -> None:
    """Insert the bodies that are missing and set `used_us` of all: retention keeps recently used bodies."""
    if bodies:
        insert = dialect.insert_statement(tx, table)
        put = insert.on_conflict_do_update(index_elements=["hash"], set_={"used_us": insert.excluded.used_us})
        tx.execute(put, [{"hash": key, "body": bodies[key], "used_us": at_us} for key in sorted(bodies)])


def verdicts_get(tx: Tx, hash_: str) -> str | None:
    body: str | None = tx.execute(sa.select(verdict_sets.c.body).where(verdict_sets.c.hash == hash_)).scalar()
    return body


def idempotency_claim(tx: Tx, rows: list[IdempotencyClaim]) -> dict[tuple[str, str], IdempotencyClaim]:
    """Claim idempotency keys. Return the stored claim of each key: the new one, or an earlier one."""
    ordered = sorted(rows, key=lambda row: (row.owner, row.key))
    dialect.insert_missing(tx, idempotency, [asdict(row) for row in ordered])
    is_claimed = sa.tuple_(idempotency.c.owner, idempotency.c.key).in_([(row.owner, row.key) for row in ordered])
    claims = fetch_all(tx, IdempotencyClaim, sa.select(idempotency).where(is_claimed))
    return {(claim.owner, claim.key): claim for claim in claims}


def idempotency_get(tx: Tx, owner: str, key: str) -> IdempotencyClaim | None:
    query = sa.select(idempotency).where(idempotency.c.owner == owner, idempotency.c.key == key)
    return fetch_one(tx, IdempotencyClaim, query)


def idempotency_used(tx: Tx, owner: str, keys: Iterable[str]) -> set[str]:
    """Return those of the keys that the owner has used."""
    wanted, used = list(keys), set[str]()
    for start in range(0, len(wanted), IDS_PER_STATEMENT_MAX):
        is_wanted = idempotency.c.key.in_(wanted[start : start + IDS_PER_STATEMENT_MAX])
        used.update(tx.execute(sa.select(idempotency.c.key).where(idempotency.c.owner == owner, is_wanted)).scalars())
    return used


def idempotency_clean(tx: Tx, *, before_us: int, limit: int) -> int:
    old = sa.select(idempotency.c.owner, idempotency.c.key).where(idempotency.c.created_us < before_us).limit(limit)
    delete = sa.delete(idempotency).where(sa.tuple_(idempotency.c.owner, idempotency.c.key).in_(old))
    return tx.execute(delete).rowcount


def job_insert_many(tx: Tx, rows: Iterable[NewJobRow], *, first_seq: int) -> None:
    """Insert jobs and number them in order, from `first_seq` on.

    Ids are unique: a job that is stored already is this same insert, committed by an earlier try, and stays.
    Most jobs leave the optional columns empty: their insert binds less than half the values and costs half.
    """
    common, full = [], []
    for seq, row in enumerate(rows, first_seq):
        values = astuple(row)
        if values[_COMMON_COUNT:] == _NO_OPTIONAL_VALUES:
            common.append((*values[:_COMMON_COUNT], seq))
        else:
            full.append((*values, seq))
    _insert_jobs(tx, _COMMON_COLUMNS, common)
    _insert_jobs(tx, _ALL_COLUMNS, full)


_COMMON_COUNT = len(NewJobRow.__struct_fields__) - len(NewJobRow.__struct_defaults__)
_NO_OPTIONAL_VALUES = NewJobRow.__struct_defaults__
_ALL_COLUMNS = (*NewJobRow.__struct_fields__, "seq")
_COMMON_COLUMNS = (*NewJobRow.__struct_fields__[:_COMMON_COUNT], "seq")


def _insert_jobs(tx: Tx, names: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    rows.sort(key=itemgetter(0))  # by id: concurrent servers insert in one order
    if not rows:
        return
    if dialect.is_postgresql(tx) and len(rows) >= UNNEST_ROWS_MIN:
        tx.exec_driver_sql(_insert_unnest_sql(names), tuple(list(column) for column in zip(*rows, strict=True)))
    else:
        driver_run(tx, dialect.insert_sql(tx, "jobs", names) + " ON CONFLICT DO NOTHING", rows)


@cache
def _insert_unnest_sql(names: tuple[str, ...]) -> str:
    """One array per column, in binary format: for dozens of rows half the time of one statement per row."""
    kinds = {Text: "text", BigInteger: "int8", Integer: "int4", Boolean: "bool"}
    arrays = ", ".join(f"%b::{kinds[type(jobs.c[name].type)]}[]" for name in names)
    return f"{dialect.insert_into('jobs', names)} SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"


def job_get(tx: Tx, job_id: str) -> JobDetails | None:
    return fetch_one(
        tx, JobDetails, sa.select(*_DETAILS).select_from(_WITH_CLUSTER_AND_SPEC).where(jobs.c.id == job_id)
    )


def job_states(tx: Tx, job_ids: Sequence[str]) -> dict[str, JobStatus]:
    columns = columns_of(JobStatus, jobs, cluster=clusters.c.name)
    query = sa.select(*columns).select_from(_WITH_CLUSTER).where(jobs.c.id.in_(job_ids))
    return {row.id: row for row in fetch_all(tx, JobStatus, query)}


def job_ids_by_prefix(tx: Tx, prefix: str, *, projects: Sequence[str] | None = None, reader: str = "") -> list[str]:
    """Return up to two ids with this prefix, of jobs that the reader may view. Other jobs make no prefix ambiguous."""
    # A range on the primary key: LIKE does not use the index with every collation. Only digits and letters sort the
    # same in all collations, so the upper end is the highest id with this prefix.
    within = jobs.c.id.between(prefix, prefix.ljust(LENGTH, "Z"))
    query = sa.select(jobs.c.id).where(within).order_by(jobs.c.id).limit(2)
    if projects is not None:
        query = query.where(sa.or_(jobs.c.project.in_(projects), jobs.c.owner_id == reader))
    return list(tx.execute(query).scalars())


def job_list(
    tx: Tx, wanted: JobFilter, *, before: str | None, limit: int, budget: int, with_spec: bool
) -> tuple[list[JobDetails], str | None]:
    """List jobs, newest first. Reads at most `budget` rows; if there may be more, also returns the last id it read.

    Filters on columns without an index apply to a window of the primary key. A search for a rare label among a million
    jobs then takes a bounded time per page.
    """
    window = sa.select(jobs.c.id).order_by(jobs.c.id.desc()).limit(budget)
    if before is not None:
        window = window.where(jobs.c.id < before)
    if wanted.ids:
        window = window.where(jobs.c.id.in_(wanted.ids))
    if wanted.oldest is not None:
        window = window.where(jobs.c.id >= wanted.oldest)
    lowest, read_count = tx.execute(sa.select(sa.func.min(window.subquery().c.id), sa.func.count())).one()
    if lowest is None:
        return [], None
    source = _WITH_CLUSTER_AND_SPEC if with_spec else _WITH_CLUSTER
    columns = _DETAILS if with_spec else _DETAILS_WITHOUT_SPEC
    query = sa.select(*columns).select_from(source).where(jobs.c.id >= lowest, *filter_conditions(wanted))
    if before is not None:
        query = query.where(jobs.c.id < before)
    limit = limit_by_spec_bytes(tx, query, limit) if with_spec else limit
    rows = fetch_all(tx, JobDetails, query.order_by(jobs.c.id.desc()).limit(limit + 1))
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].id
    return rows, lowest if read_count == budget else None


def filter_conditions(wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.ids:
        conditions.append(jobs.c.id.in_(wanted.ids))
    if wanted.states:
        conditions.append(jobs.c.state.in_(wanted.states))
    if wanted.cluster is not None:
        is_there = clusters.c.name == wanted.cluster
        conditions.append(sa.or_(is_there, _has_task_on(wanted.cluster)) if wanted.is_by_task else is_there)
    for column, value in (
        (jobs.c.project, wanted.project),
        (jobs.c.domain, wanted.domain),
        (jobs.c.owner, wanted.owner),
        (jobs.c.owner_id, wanted.owner_id),
        (jobs.c.workflow, wanted.workflow),
        (jobs.c.launch_plan, wanted.launch_plan),
    ):
        if value is not None:
            conditions.append(column == value)
    if wanted.queue is not None:
        conditions.append(_is_in_queue(wanted.queue))
    if wanted.text is not None:
        name = sa.func.lower(jobs.c.name)
        conditions.append(sa.func.replace(name, sa.func.lower(wanted.text), "") != name)
    if wanted.projects is not None:
        conditions.append(sa.or_(jobs.c.project.in_(wanted.projects), jobs.c.owner_id == (wanted.reader or "")))
    for key, value in sorted(wanted.labels.items()):
        conditions.append(_has_label(key, value))
    return conditions


def _has_task_on(cluster: str) -> sa.ColumnElement[bool]:
    """Arrays alone have ranges, so plain jobs cost no look at them."""
    lessees = clusters.alias("lessees")
    leased = sa.select(ranges.c.job_id).join(lessees, lessees.c.id == ranges.c.cluster_id)
    leased = leased.where(ranges.c.job_id == jobs.c.id, lessees.c.name == cluster)
    return sa.and_(jobs.c.array.is_not(None), leased.correlate(jobs).exists())


def _is_in_queue(queue: str) -> sa.ColumnElement[bool]:
    """The lane begins with the name of the queue and `/` (model/rules/queue.py). Names may have LIKE's wildcard `_`."""
    counted, uncounted = f"{queue}/", f"{UNCOUNTED_PREFIX}{queue}/"
    return sa.or_(*(sa.func.substr(jobs.c.lane, 1, len(start)) == start for start in (counted, uncounted)))


def _has_label(key: str, value: str) -> sa.ColumnElement[bool]:
    """Labels are stored as canonical JSON, so a label is a fixed piece of the text."""
    pair = f"{json.dumps(key, ensure_ascii=False)}:{json.dumps(value, ensure_ascii=False)}"
    # Not LIKE, which ignores case on SQLite: if removing the pair changes the text, the pair is in it.
    return sa.func.replace(jobs.c.labels, pair, "") != jobs.c.labels


# Built once: building a statement costs more than running it.
_LOCK = FrequentStatement(
    sa.select(jobs).where(jobs.c.id.in_(sa.bindparam("ids", expanding=True))).order_by(jobs.c.id).with_for_update()
)


def job_lock(tx: Tx, job_ids: Iterable[str]) -> dict[str, JobRow]:
    """Lock jobs for change, in the order of their ids: two servers that lock in arrival order deadlock.

    Columns that cannot be read are replaced (`readable_row`), so that every job can be ended.
    """
    ids = sorted(set(job_ids))
    rows_by_id: dict[str, JobRow] = {}
    for start in range(0, len(ids), IDS_PER_STATEMENT_MAX):
        rows = _LOCK.fetch_all(tx, JobRow, {"ids": ids[start : start + IDS_PER_STATEMENT_MAX]})
        rows_by_id |= {row.id: readable_row(row) for row in rows}
    return rows_by_id


def job_update_many(tx: Tx, updates: Mapping[str, JobUpdate]) -> None:
    """Update locked jobs, with one statement for all updates of the same columns."""
    by_columns: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for job_id in sorted(updates):
        columns = updates[job_id].columns()
        by_columns.setdefault(tuple(sorted(columns)), []).append({"p_id": job_id} | columns)
    for names, rows in by_columns.items():
        _update_statement(names).run(tx, rows)


@lru_cache(maxsize=256)
def _update_statement(names: tuple[str, ...]) -> FrequentStatement:
    statement = sa.update(jobs).where(jobs.c.id == sa.bindparam("p_id"))
    return FrequentStatement(statement.values({name: sa.bindparam(name) for name in names}))


def job_list_routable(tx: Tx, *, after: str, limit: int) -> list[RoutableJob]:
    """List PENDING jobs that nothing blocks, in the order of arrival."""
    query = sa.select(*columns_of(RoutableJob, jobs)).where(sa.text(ROUTABLE), jobs.c.id > after)
    return fetch_all(tx, RoutableJob, query.order_by(jobs.c.id).limit(limit))


def job_ids_backoff_over(tx: Tx, *, now_us: int, limit: int) -> list[str]:
    """Return jobs whose back-off is over."""
    query = (
        sa.select(jobs.c.id)
        .where(sa.text(HAS_WAKE_TIME), jobs.c.wake_us <= now_us)
        .order_by(jobs.c.wake_us)
        .limit(limit)
    )
    return list(tx.execute(query).scalars())


def job_ids_expired(tx: Tx, *, now_us: int, limit: int) -> list[str]:
    """Return jobs that have not started and whose time to start is over."""
    query = sa.select(jobs.c.id).where(sa.text(EXPIRING), jobs.c.expires_us <= now_us)
    return list(tx.execute(query.order_by(jobs.c.expires_us).limit(limit)).scalars())


def job_ids_late(tx: Tx, *, now_us: int, limit: int) -> list[str]:
    """Return jobs that have not started and whose queueing budget is spent."""
    query = sa.select(jobs.c.id).where(sa.text(HAS_LATE_TIME), jobs.c.late_from_us <= now_us)
    return list(tx.execute(query.order_by(jobs.c.late_from_us).limit(limit)).scalars())


def dependency_insert(tx: Tx, rows: Iterable[DependencyRow]) -> None:
    ordered = sorted(rows, key=lambda row: (row.job_id, row.on_id))
    dialect.insert_missing(tx, dependencies, [asdict(row) for row in ordered])


def dependency_list_settled(tx: Tx, *, limit: int) -> list[SettledDependency]:
    """List dependencies on jobs that have ended or were removed.

    Owners of the waiting jobs take turns: the first job of each owner, then the second job of each, and so on.
    """
    waiting = jobs.alias("waiting")
    both = dependencies.outerjoin(jobs, jobs.c.id == dependencies.c.on_id)
    turn = sa.func.row_number().over(partition_by=waiting.c.owner_id, order_by=dependencies.c.job_id)
    query = (
        sa.select(dependencies, jobs.c.state)
        .select_from(both.outerjoin(waiting, waiting.c.id == dependencies.c.job_id))
        .where(sa.or_(jobs.c.state.in_(FINAL_STATES), jobs.c.id.is_(None)))
        .order_by(turn)
        .limit(limit)
    )
    return fetch_all(tx, SettledDependency, query)


def dependency_delete(tx: Tx, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        both = sa.tuple_(dependencies.c.job_id, dependencies.c.on_id)
        tx.execute(sa.delete(dependencies).where(both.in_(pairs)))


def dependency_clear(tx: Tx, job_ids: list[str]) -> None:
    if job_ids:
        tx.execute(sa.delete(dependencies).where(dependencies.c.job_id.in_(job_ids)))


def dependency_remaining(tx: Tx, job_ids: list[str]) -> set[str]:
    """Return the jobs of these that still wait for another job."""
    query = sa.select(dependencies.c.job_id).where(dependencies.c.job_id.in_(sorted(job_ids))).distinct()
    return set(tx.execute(query).scalars())


def dependency_list(tx: Tx, job_id: str) -> list[DependencyRow]:
    query = sa.select(dependencies).where(dependencies.c.job_id == job_id).order_by(dependencies.c.on_id)
    return fetch_all(tx, DependencyRow, query)


def attempt_archive(tx: Tx, rows: list[AttemptRow]) -> None:
    """Store attempts that are over while their jobs go on."""
    dialect.insert_missing(tx, attempts, [asdict(row) for row in rows])


def attempt_list(tx: Tx, job_id: str) -> list[AttemptOnCluster]:
    source = attempts.outerjoin(clusters, clusters.c.id == attempts.c.cluster_id)
    query = sa.select(*columns_of(AttemptOnCluster, attempts, cluster=clusters.c.name)).select_from(source)
    return fetch_all(tx, AttemptOnCluster, query.where(attempts.c.job_id == job_id).order_by(attempts.c.fence))


def limit_by_spec_bytes(tx: Tx, query: sa.Select[Any], limit: int) -> int:
    """Return how many of the first jobs of a query have specs of at most SPECS_BYTES_MAX in total. At least one."""
    size = sa.func.coalesce(sa.func.length(specs.c.body), 0)  # a damaged job may have no spec
    sizes = query.with_only_columns(size).order_by(jobs.c.id.desc()).limit(limit)
    totals: Iterator[int] = accumulate(tx.execute(sizes).scalars())
    return max(1, sum(total <= SPECS_BYTES_MAX for total in totals))
