"""List the tasks of an array in pages, with their attempts and the reasons of failed tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from switchyard.errors import BadRequest
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State, Task, TaskAttempt
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.task_states import TaskState, read_task, state_codes
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.jobs import HAS_OUTPUTS
from switchyard.service.job.task_notes import REMOVED, read_task_reason
from switchyard.service.lifecycle.transitions import refused_clusters
from switchyard.service.lifecycle.visibility import Visibility, visible_job
from switchyard.store.engine import ranges
from switchyard.store.files import file_outputs
from switchyard.store.jobs import events
from switchyard.store.jobs.job_rows import JobDetails

SCAN_MAX = 10_000  # tasks read for one page: a few milliseconds
ATTEMPTS_TOLD_MAX = 10  # of one task, the last ones: each may have been refused
REFUSED = events.task_kind(EventKind.REFUSED)
STATES_WITH_REASON = frozenset({State.FAILED, State.CANCELLED, State.PENDING})  # PENDING: waits for its retry

# How an attempt ended that was not the last one, by the kind of its event.
ENDS = {
    events.task_kind(EventKind.RETRYING): "failed",
    events.task_kind(EventKind.REQUEUED): "lost",
    events.task_kind(EventKind.PREEMPTED): "preempted",
    events.task_kind(EventKind.REFUSED): "refused",
    events.task_kind(EventKind.RETURNED): "returned",
}
MAP_TASKS_MAX = 200_000  # of a larger array only the counts are shown: the map would have no readable cells
RANGES_MAX = 20_000  # of an array that was leased in more ranges only the counts are shown
CELLS_MAX = 2000
FAILED_MAX = 200  # failed tasks that are listed by index

# What a cell shows: the first of these that one of its tasks has.
SHOWN_FIRST = ("failed", "running", "assigned", "waiting", "cancelled", "succeeded")
_WAITING, _CANCELLED = SHOWN_FIRST.index("waiting"), SHOWN_FIRST.index("cancelled")
_WORDS = {
    State.ASSIGNED: "assigned",
    State.SUBMITTED: "assigned",
    State.RUNNING: "running",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    None: "waiting",
}


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


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A lease of one task."""

    fence: int
    cluster: str | None
    task: TaskState

    @property
    def cluster_name(self) -> str:
        return self.cluster or REMOVED


def _visible_tasks(
    context: Context, actor: Actor, row: JobDetails, tasks: list[Task], rows: Sequence[ranges.RangeOnCluster]
) -> list[Task]:
    """Return the tasks with their attempts and reasons, without names of clusters that are hidden from the reader."""
    visibility = Visibility(context, actor)
    tasks = _with_outputs(context, row, _with_attempts(context, row, tasks, rows))
    if visibility.is_own(row):
        return tasks
    return [
        replace(
            task,
            cluster=visibility.name(task.cluster),
            reason=visibility.text(task.reason),
            outputs=task.outputs and replace(task.outputs, error=visibility.text(task.outputs.error)),
            earlier=[
                replace(attempt, cluster=visibility.name(attempt.cluster), reason=visibility.text(attempt.reason))
                for attempt in task.earlier
            ],
        )
        for task in tasks
    ]


def _with_attempts(
    context: Context, row: JobDetails, tasks: list[Task], rows: Sequence[ranges.RangeOnCluster]
) -> list[Task]:
    """Add the attempts of each task, and the reasons of those without success, which are in the array's events."""
    attempts = _attempts(tasks, rows)
    fences = [
        attempt.fence
        for task in tasks
        for attempt in attempts[task.index][-ATTEMPTS_TOLD_MAX:]
        if task.state in STATES_WITH_REASON or len(attempts[task.index]) > 1
    ]
    events_by_fence: dict[int, events.TaskEvent] = {}
    if fences:
        with context.database.read() as tx:
            events_by_fence = {event.fence: event for event in events.event_list_of_tasks(tx, row.id, fences)}
    shown = []
    for task in tasks:
        leases = attempts[task.index]
        last_leases = leases[-ATTEMPTS_TOLD_MAX:]
        earlier = [
            _earlier_attempt(attempt, events_by_fence.get(attempt.fence))
            for attempt in last_leases
            if attempt.task.state is None
        ]
        shown.append(
            _with_reason(replace(task, attempts=len(leases), earlier=earlier), row, last_leases, events_by_fence)
        )
    return shown


def _with_outputs(context: Context, row: JobDetails, tasks: list[Task]) -> list[Task]:
    """Add what the clusters have said of the output files of the last attempts."""
    if row.spec is None or HAS_OUTPUTS not in row.spec or not tasks:
        return tasks
    with context.database.read() as tx:
        outputs = file_outputs.outputs_of_attempts(tx, row.id, [task.fence for task in tasks if task.fence])
    return [replace(task, outputs=outputs.get(task.fence)) for task in tasks]


def _attempts(tasks: list[Task], rows: Sequence[ranges.RangeOnCluster]) -> dict[int, list[_Attempt]]:
    """Return the attempts of each task, oldest first."""
    attempts: dict[int, list[_Attempt]] = {task.index: [] for task in tasks}
    first, last = min(attempts, default=0), max(attempts, default=-1)
    for range_row in rows:
        if range_row.agent_id is None:
            continue  # cancelled before any agent had it
        for index in range(max(range_row.lo, first), min(range_row.hi, last) + 1):
            if index in attempts:
                position = index - range_row.lo
                state = read_task(range_row.tasks, position)
                attempts[index].append(_Attempt(range_row.fence + position, range_row.cluster, state))
    return attempts


def _earlier_attempt(attempt: _Attempt, event: events.TaskEvent | None) -> TaskAttempt:
    return TaskAttempt(
        fence=attempt.fence,
        cluster=attempt.cluster,
        ended=ENDS.get(event.kind, "") if event is not None else "",
        exit_code=attempt.task.exit_code,
        signal=attempt.task.signal,
        reason=read_task_reason(event.reason)[1] if event is not None else "",
    )


def _with_reason(
    task: Task, row: JobDetails, attempts: list[_Attempt], events_by_fence: dict[int, events.TaskEvent]
) -> Task:
    if task.state not in STATES_WITH_REASON:
        return task
    last = attempts[-1] if attempts else _Attempt(0, "", TaskState())
    event = events_by_fence.get(last.fence)
    reason = read_task_reason(event.reason)[1] if event is not None else ""
    is_refused = event is not None and event.kind == REFUSED
    refusals = {
        attempt.cluster_name: read_task_reason(events_by_fence[attempt.fence].reason)[1]
        for attempt in attempts[:-1]
        if attempt.fence in events_by_fence
        and events_by_fence[attempt.fence].kind == REFUSED
        and attempt.cluster_name != last.cluster_name
    }
    if task.state is State.FAILED and not event:
        reason = reason or row.reason  # refused by all clusters, before any had it
    elif refusals and reason:
        reason = f"{last.cluster_name} refused it: {reason}" if is_refused else f"{last.cluster_name}: {reason}"
    parts = [f"{cluster} refused it: {why}" for cluster, why in refusals.items()]
    return replace(task, reason="; ".join([*parts, reason] if reason else parts))


def _unleased_task(row: JobDetails, index: int) -> Task:
    state = State(row.state)
    if state in FINAL_STATES or row.cancel_us is not None:
        state = _dropped_state(row)
        return Task(index, state, is_unbegun=state is State.FAILED)
    return Task(index, State.PENDING if state is State.PENDING else State.ASSIGNED, cluster=row.cluster)


def _leased_task(row: JobDetails, range_row: ranges.RangeOnCluster, index: int) -> Task:
    task = read_task(range_row.tasks, index - range_row.lo)
    fence = range_row.fence + index - range_row.lo
    shown = Task(index, State.PENDING, task.exit_code, task.signal, fence, range_row.cluster)
    if range_row.alternative is not None:
        shown = replace(shown, alternative=range_row.alternative)
    if task.state is not None:
        return replace(shown, state=task.state, cancel_requested=task.is_cancelling, is_unbegun=task.is_unbegun)
    if State(row.state) not in FINAL_STATES:
        return shown
    # Its last cluster gave it back, and no other cluster took it.
    state, has_run = _dropped_state(row), task.is_preempted or (task.exit_code, task.signal) != (None, None)
    return replace(shown, state=state, is_unbegun=state is State.FAILED and not has_run)


def _dropped_state(row: JobDetails) -> State:
    """Return the state of a task that no cluster has when its array has ended or is being cancelled."""
    is_refused = State(row.state) is State.FAILED and row.cancel_us is None and bool(refused_clusters(row))
    return State.FAILED if is_refused else State.CANCELLED


@dataclass(frozen=True, slots=True)
class TaskCell:
    """Consecutive tasks that are drawn as one square. `word`: one of SHOWN_FIRST; `index`: the first task with it."""

    word: str
    index: int


@dataclass(frozen=True, slots=True)
class TaskMap:
    """`per_cell`: tasks in one square. `cells` is empty if the array has too many tasks or ranges to draw."""

    total: int
    per_cell: int
    cells: list[TaskCell] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    is_cut: bool = False  # there are more failed tasks


def task_map(context: Context, actor: Actor, ref: str) -> TaskMap | None:
    """Return the map of an array; None: the job is not an array."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        if row.array is None:
            return None
        indexes = IdSet.parse(row.array)
        if len(indexes) > MAP_TASKS_MAX:
            return TaskMap(len(indexes), 0)
        rows = ranges.range_list(tx, row.id, limit=RANGES_MAX + 1)
    if len(rows) > RANGES_MAX:  # the newest ranges, which count, would be missing
        return TaskMap(len(indexes), 0)
    is_over = State(row.state) in FINAL_STATES or row.cancel_us is not None
    order = list(indexes)
    words = _words(order, rows, unleased=_CANCELLED if is_over else _WAITING)
    per_cell = -(-len(order) // CELLS_MAX) or 1
    cells = [_cell(order, words, start, per_cell) for start in range(0, len(order), per_cell)]
    failed = [index for index, word in zip(order, words, strict=True) if word == 0]
    return TaskMap(len(order), per_cell, cells, failed[:FAILED_MAX], len(failed) > FAILED_MAX)


def _words(order: Sequence[int], rows: Sequence[ranges.RangeOnCluster], *, unleased: int) -> bytearray:
    """Return the word of each task, as a position in SHOWN_FIRST. Of several ranges with a task the last one counts."""
    words = bytearray([unleased]) * len(order)
    positions = {index: position for position, index in enumerate(order)}
    table = {code: SHOWN_FIRST.index(_WORDS[state]) for code, state in enumerate(state_codes())}
    table[list(state_codes()).index(None)] = unleased
    for row in rows:
        for offset, head in enumerate(row.tasks[::2]):
            position = positions.get(row.lo + offset)
            if position is not None:
                words[position] = table.get(head & 0x0F, unleased)
    return words


def _cell(order: Sequence[int], words: bytearray, start: int, size: int) -> TaskCell:
    part = words[start : start + size]
    shown = min(part)
    return TaskCell(SHOWN_FIRST[shown], order[start + part.index(shown)])
