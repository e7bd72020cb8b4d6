"""Queries about the output files of attempts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from switchyard.model.files.files import OutputCounts, OutputState, TaskOutputs
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.files.file_trees import OUT
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.files_tables import UNSENT, UPLOADING, file_outputs, file_refs
from switchyard.store.tables.schema import attempts, jobs, ranges


class AttemptPlace(StoredRow, frozen=True):
    """Where an attempt ran. `task`: of an array; `tasks`: the states of its range, in which it has this `position`."""

    cluster_id: str | None
    agent_id: str | None
    task: int | None
    tasks: bytes | None
    position: int


class OutputRow(StoredRow, frozen=True):
    """The outputs of an attempt. `missing` and `skipped`: JSON lists."""

    job_id: str
    fence: int
    task: int | None
    cluster_id: str | None
    state: str
    root: bytes | None
    files: int
    size: int
    missing: str
    skipped: str
    error: str
    at_us: int
    agent_id: str | None
    retry_until_us: int | None


class OutputOnCluster(OutputRow, frozen=True):
    cluster: str | None


def attempt_place(tx: Tx, job_id: str, fence: int) -> AttemptPlace | None:
    """Where the attempt with this fence runs or ran; None: there was none."""
    is_array = tx.scalar(sa.select(jobs.c.array.is_not(None)).where(jobs.c.id == job_id))
    return _task_place(tx, job_id, fence) if is_array else _job_place(tx, job_id, fence)


def _job_place(tx: Tx, job_id: str, fence: int) -> AttemptPlace | None:
    no_task = (sa.null().label("task"), sa.null().label("tasks"), sa.literal(0).label("position"))
    for table, key in ((jobs, jobs.c.id), (attempts, attempts.c.job_id)):
        query = sa.select(table.c.cluster_id, table.c.agent_id, *no_task).where(key == job_id, table.c.fence == fence)
        place = fetch_one(tx, AttemptPlace, query)
        if place is not None:
            return place
    return None


def _task_place(tx: Tx, job_id: str, fence: int) -> AttemptPlace | None:
    """Read `ranges` alone. Rows of the array itself (`jobs`, `attempts`) have the fence that a task got last."""
    # Task `lo + i` of a range runs under the fence `fence + i`.
    task = (ranges.c.lo + fence - ranges.c.fence).label("task")
    within = sa.and_(ranges.c.fence <= fence, ranges.c.lo + fence - ranges.c.fence <= ranges.c.hi)
    position = (fence - ranges.c.fence).label("position")
    columns = (ranges.c.cluster_id, ranges.c.agent_id, task, ranges.c.tasks, position)
    query = sa.select(*columns).where(ranges.c.job_id == job_id, within)
    return fetch_one(tx, AttemptPlace, query.order_by(ranges.c.fence.desc()).limit(1))


def output_get(tx: Tx, job_id: str, fence: int) -> OutputRow | None:
    query = sa.select(file_outputs).where(file_outputs.c.job_id == job_id, file_outputs.c.fence == fence)
    return fetch_one(tx, OutputRow, query)


def output_put(tx: Tx, row: dict[str, Any]) -> None:
    """Store the outputs of an attempt, or replace what an earlier message said."""
    put = dialect.insert_statement(tx, file_outputs).values(**row)
    changes = {name: value for name, value in row.items() if name not in ("job_id", "fence")}
    tx.execute(put.on_conflict_do_update(index_elements=["job_id", "fence"], set_=changes))


def unsent_count(tx: Tx, cluster_id: str, agent_ids: Collection[str] | None, *, now_us: int) -> int:
    """Count the attempts of which one of these agents has output files that it still sends. None: all of the cluster"""
    query = sa.select(sa.func.count()).select_from(file_outputs).where(_is_unsent(cluster_id, agent_ids, now_us))
    return tx.scalar(query) or 0


def uploading_since(tx: Tx, owner: str, *, since_us: int) -> dict[str | None, int]:
    """When an agent first spoke of output files that are still on their way to this user, by agent, since a time."""
    query = (
        sa.select(file_outputs.c.agent_id, sa.func.min(file_outputs.c.at_us))
        .join(jobs, jobs.c.id == file_outputs.c.job_id)
        .where(sa.text("file_outputs." + UPLOADING), jobs.c.owner_id == owner, file_outputs.c.at_us >= since_us)
        .group_by(file_outputs.c.agent_id)
    )
    return {row[0]: row[1] for row in tx.execute(query)}


def unsent_give_up(
    tx: Tx, cluster_id: str, agent_ids: Collection[str] | None, *, now_us: int, error: str, rest_error: str
) -> set[str]:
    """Record that files which these agents still send will not come. Returns the jobs.

    Outputs of which a part was sent stay ready, with the error `rest_error`. All others fail with `error`.
    """
    is_ready = file_outputs.c.state == OutputState.READY.value
    update = sa.update(file_outputs).where(_is_unsent(cluster_id, agent_ids, now_us))
    given_up = update.values(
        state=sa.case((is_ready, file_outputs.c.state), else_=OutputState.FAILED.value),
        error=sa.case((is_ready, rest_error), else_=error),
        retry_until_us=None,
    )
    return set(tx.execute(given_up.returning(file_outputs.c.job_id)).scalars())


def _is_unsent(cluster_id: str, agent_ids: Collection[str] | None, now_us: int) -> sa.ColumnElement[bool]:
    """`agent_ids`: None is all agents of the cluster, and outputs of which no agent is known."""
    is_theirs = [] if agent_ids is None else [file_outputs.c.agent_id.in_(sorted(agent_ids))]
    is_expected = sa.or_(sa.text(UPLOADING), file_outputs.c.retry_until_us > now_us)
    return sa.and_(sa.text(UNSENT), is_expected, file_outputs.c.cluster_id == cluster_id, *is_theirs)


def is_root_shared(tx: Tx, project: str, job_id: str, fence: int, root: bytes) -> bool:
    """Whether a project needs a tree for more than the outputs of this attempt."""
    is_own = sa.and_(file_refs.c.job_id == job_id, file_refs.c.kind == OUT)
    others = sa.select(file_refs.c.root).where(
        file_refs.c.project == project, file_refs.c.root == root, sa.not_(is_own)
    )
    return tx.execute(others.limit(1)).first() is not None or _has_other_attempt(tx, job_id, fence, root)


def ref_drop(tx: Tx, job_id: str, fence: int, root: bytes) -> None:
    """The outputs of this attempt have another tree now. The job may need this one for another attempt."""
    if not _has_other_attempt(tx, job_id, fence, root):
        is_it = sa.and_(file_refs.c.job_id == job_id, file_refs.c.root == root, file_refs.c.kind == OUT)
        tx.execute(sa.delete(file_refs).where(is_it))


def _has_other_attempt(tx: Tx, job_id: str, fence: int, root: bytes) -> bool:
    others = sa.select(file_outputs.c.fence).where(
        file_outputs.c.job_id == job_id, file_outputs.c.root == root, file_outputs.c.fence != fence
    )
    return tx.execute(others.limit(1)).first() is not None


def output_list(
    tx: Tx, job_id: str, *, task: int | None, after: int | None, limit: int
) -> tuple[list[OutputOnCluster], int | None]:
    """The outputs of a job, by fence; and the fence to go on after, if there are more."""
    source = file_outputs.outerjoin(clusters, clusters.c.id == file_outputs.c.cluster_id)
    query = sa.select(*columns_of(OutputOnCluster, file_outputs, cluster=clusters.c.name)).select_from(source)
    query = query.where(file_outputs.c.job_id == job_id)
    if task is not None:
        query = query.where(file_outputs.c.task == task)
    if after is not None:
        query = query.where(file_outputs.c.fence > after)
    rows = fetch_all(tx, OutputOnCluster, query.order_by(file_outputs.c.fence).limit(limit + 1))
    return rows[:limit], rows[limit - 1].fence if len(rows) > limit else None


def outputs_of_attempts(tx: Tx, job_id: str, fences: list[int]) -> dict[int, TaskOutputs]:
    """The outputs of the attempts with these fences, by fence."""
    columns = [file_outputs.c[name] for name in ("fence", "state", "files", "size", "error")]
    query = sa.select(*columns).where(file_outputs.c.job_id == job_id, file_outputs.c.fence.in_(fences))
    return {row.fence: TaskOutputs(OutputState(row.state), row.files, row.size, row.error) for row in tx.execute(query)}


def output_counts(tx: Tx, job_id: str) -> OutputCounts:
    """How many attempts have outputs, by state, and how many files of them are ready."""
    size = sa.func.sum(file_outputs.c.size)
    query = sa.select(file_outputs.c.state, sa.func.count(), sa.func.sum(file_outputs.c.files), size)
    rows = tx.execute(query.where(file_outputs.c.job_id == job_id).group_by(file_outputs.c.state)).all()
    ready = next((row for row in rows if row.state == OutputState.READY), None)
    return OutputCounts(
        **{row.state: row[1] for row in rows}, files=int(ready[2]) if ready else 0, bytes=int(ready[3]) if ready else 0
    )
