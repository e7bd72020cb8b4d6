"""List the tasks of an array in pages, with the reasons of failed tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from switchyard.errors import BadRequest
from switchyard.model.event_kind import EventKind
from switchyard.model.idset import IdSet
from switchyard.model.job import State, Task
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.task_states import read_task
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.task_notes import REMOVED, read_task_reason
from switchyard.service.lifecycle.transitions import refused_clusters
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.service.lifecycle.visible_jobs import visible_job
from switchyard.store import events, ranges
from switchyard.store.job_rows import JobDetails

SCAN_MAX = 10_000  # tasks read for one page: a few milliseconds
ATTEMPTS_TOLD_MAX = 10  # of one task, the last ones: each may have been refused
REFUSED = events.task_kind(EventKind.REFUSED)
STATES_WITH_REASON = frozenset({State.FAILED, State.CANCELLED, State.PENDING})  # PENDING: waits for its retry

Attempt = tuple[int, str]  # fence and cluster


def task_list(
    context: Context, actor: Actor, ref: str, *, states: frozenset[State], after: int, limit: int
) -> tuple[list[Task], int | None]:
    """Return tasks of an array by index, and the last index read if there may be more."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        if row.array is None:
            raise BadRequest(f"Job {row.id} is not an array.", next_step="`yard show` has all there is.")
        remaining = IdSet.parse(row.array).after(after)
        indexes = list(islice(remaining, SCAN_MAX))
        rows = ranges.range_list(tx, row.id, between=(indexes[0], indexes[-1])) if indexes else []
    tasks = {index: _unleased_task(row, index) for index in indexes}
    for range_row in rows:
        for index in range(max(range_row.lo, after + 1), min(range_row.hi, indexes[-1]) + 1):
            if index in tasks:
                tasks[index] = _leased_task(row, range_row, index)
    matching = [task for task in tasks.values() if not states or task.state in states]
    shown = _visible_tasks(context, actor, row, matching[:limit], rows)
    if len(matching) > limit:
        return shown, matching[limit - 1].index
    return shown, None if next(remaining, None) is None else indexes[-1]


def _visible_tasks(
    context: Context, actor: Actor, row: JobDetails, tasks: list[Task], rows: Sequence[ranges.RangeOnCluster]
) -> list[Task]:
    """Return the tasks with their reasons, without names of clusters that are hidden from the reader."""
    visibility = Visibility(context, actor)
    tasks = _with_reasons(context, row, tasks, rows)
    if visibility.is_own(row):
        return tasks
    return [replace(task, cluster=visibility.name(task.cluster), reason=visibility.text(task.reason)) for task in tasks]


def _with_reasons(
    context: Context, row: JobDetails, tasks: list[Task], rows: Sequence[ranges.RangeOnCluster]
) -> list[Task]:
    """Add the reasons of tasks without success, which are in the array's events: of refusals, and of the end."""
    attempts = _attempts(tasks, rows)
    fences = [fence for leases in attempts.values() for fence, _ in leases]
    if not fences:
        return [_with_reason(task, row, [], {}) for task in tasks]
    with context.database.read() as tx:
        told = {event.fence: event for event in events.event_list_of_tasks(tx, row.id, fences)}
    return [_with_reason(task, row, attempts.get(task.index, []), told) for task in tasks]


def _attempts(tasks: list[Task], rows: Sequence[ranges.RangeOnCluster]) -> dict[int, list[Attempt]]:
    """Return the last attempts of each task that needs a reason, oldest first."""
    attempts: dict[int, list[Attempt]] = {task.index: [] for task in tasks if task.state in STATES_WITH_REASON}
    first, last = min(attempts, default=0), max(attempts, default=-1)
    for range_row in rows:
        for index in range(max(range_row.lo, first), min(range_row.hi, last) + 1):
            if index in attempts:
                attempts[index].append((range_row.fence + index - range_row.lo, range_row.cluster or REMOVED))
    return {index: leases[-ATTEMPTS_TOLD_MAX:] for index, leases in attempts.items()}


def _with_reason(task: Task, row: JobDetails, attempts: list[Attempt], told: dict[int, events.TaskEvent]) -> Task:
    if task.state not in STATES_WITH_REASON:
        return task
    *earlier, last = attempts or [(0, "")]
    event = told.get(last[0])
    reason = read_task_reason(event.reason)[1] if event is not None else ""
    is_refused = event is not None and event.kind == REFUSED
    refusals = {
        cluster: read_task_reason(told[fence].reason)[1]
        for fence, cluster in earlier
        if fence in told and told[fence].kind == REFUSED and cluster != last[1]
    }
    if task.state is State.FAILED and not event:
        reason = reason or row.reason  # refused by all clusters, before any had it
    elif refusals and reason:
        reason = f"{last[1]} refused it: {reason}" if is_refused else f"{last[1]}: {reason}"
    parts = [f"{cluster} refused it: {why}" for cluster, why in refusals.items()]
    return replace(task, reason="; ".join([*parts, reason] if reason else parts))


def _unleased_task(row: JobDetails, index: int) -> Task:
    state = State(row.state)
    if state in FINAL_STATES or row.cancel_us is not None:
        return Task(index, _dropped_state(row))
    return Task(index, State.PENDING if state is State.PENDING else State.ASSIGNED, cluster=row.cluster)


def _leased_task(row: JobDetails, range_row: ranges.RangeOnCluster, index: int) -> Task:
    task = read_task(range_row.tasks, index - range_row.lo)
    fence = range_row.fence + index - range_row.lo
    if task.state is None:
        state = _dropped_state(row) if State(row.state) in FINAL_STATES else State.PENDING
        return Task(index, state, task.exit_code, task.signal, fence, range_row.cluster)
    return Task(index, task.state, task.exit_code, task.signal, fence, range_row.cluster, task.is_cancelling)


def _dropped_state(row: JobDetails) -> State:
    """Return the state of a task that no cluster has when its array has ended or is being cancelled."""
    is_refused = State(row.state) is State.FAILED and row.cancel_us is None and bool(refused_clusters(row))
    return State.FAILED if is_refused else State.CANCELLED
