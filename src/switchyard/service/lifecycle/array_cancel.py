"""Cancel all or some tasks of an array."""

from __future__ import annotations

from dataclasses import replace

from switchyard.errors import BadRequest
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import CancelledTasks, State
from switchyard.model.job.task_states import TaskState, live_positions, new_task_states, read_task, write_task
from switchyard.model.job.taskset import TaskSet
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.store.engine import ranges
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

CANCELLED_RANGES_MAX = 5000  # ranges of unleased tasks that one request may cancel: each becomes a row


def cancel_tasks(batch: Batch, array: ArrayJob, wanted: IdSet | None) -> CancelledTasks:
    """Cancel the `wanted` tasks; None: all. Unleased tasks end at once, leased tasks when their agent reports it."""
    cancelled_before, live = array.cancelled, 0
    unleased, array.todo = array.todo.split(wanted)
    remaining_later: list[tuple[int, TaskSet]] = []
    for due_us, tasks in array.later:
        cancelled, remaining = tasks.split(wanted)
        unleased = unleased.union(cancelled)
        if remaining:
            remaining_later.append((due_us, remaining))
    array.later = remaining_later
    array.cancelled += len(unleased)
    if wanted is None and array.is_damaged:
        # The unleased tasks cannot be read. Their number is known if the array's indexes are readable.
        array.cancelled += max(0, array.total - array.ok - array.failed - array.cancelled - array.live)
        array.is_damaged, array.was_damaged = False, True
    for range_ in array.ranges.values():
        for position in live_positions(range_.tasks):
            if wanted is None or range_.lo + position in wanted:
                task = replace(read_task(range_.tasks, position), is_cancelling=True)
                range_.tasks = write_task(range_.tasks, position, task)
                range_.is_changed = True
                live += 1
                batch.clusters.add(range_.cluster_id or "")
    if wanted is not None and unleased:
        _insert_cancelled_ranges(batch, array, unleased)
    array.is_changed = True
    waiting = array.cancelled - cancelled_before
    total = array.total if wanted is None else len(wanted)
    return CancelledTasks(waiting, live, max(0, total - waiting - live))


def _insert_cancelled_ranges(batch: Batch, array: ArrayJob, tasks: TaskSet) -> None:
    """Insert ended ranges for tasks that were cancelled before any agent leased them."""
    if tasks.span_count() > CANCELLED_RANGES_MAX:
        raise BadRequest(
            f"Over {CANCELLED_RANGES_MAX:,} of these tasks of {array.row.id} are not neighbours, and nobody has leased "
            "them.",
            next_step="Cancel the whole array, ranges without a step, or fewer tasks at once.",
        )
    rows = []
    for lo, hi in tasks.spans():
        size = hi - lo + 1
        rows.append(
            ranges.RangeRow(
                job_id=array.row.id,
                fence=array.fence + 1,
                lo=lo,
                hi=hi,
                cluster_id=None,
                agent_id=None,
                tasks=write_task(new_task_states(1), 0, TaskState(State.CANCELLED)) * size,
                is_live=False,
                is_cancelling=False,
                leased_us=batch.now_us,
                ended_us=batch.now_us,
            )
        )
        array.fence += size
    ranges.range_insert(batch.tx, rows)


def drop_unleased_tasks(row: JobRow, as_state: State = State.CANCELLED) -> JobUpdate:
    """Return an update that counts all unleased tasks as cancelled, or failed. Empty for a job that is no array."""
    if row.array is None:
        return JobUpdate()
    array = ArrayJob.of(row)
    ended = array.left - array.live
    if as_state is State.FAILED:
        return JobUpdate(todo="", later=None, tasks_failed=(row.tasks_failed or 0) + ended)
    return JobUpdate(todo="", later=None, tasks_cancelled=(row.tasks_cancelled or 0) + ended)
