"""Ask for the end of tasks of an array: of all, or of some."""

from __future__ import annotations

from dataclasses import replace

from switchyard.errors import BadRequest
from switchyard.model.idset import IdSet
from switchyard.model.job import State
from switchyard.model.task_states import TaskState, live_positions, new_task_states, read_task, write_task
from switchyard.model.taskset import TaskSet
from switchyard.service.committer import Batch
from switchyard.service.run.arrays import ArrayJob
from switchyard.store import ranges

CANCELLED_RANGES_MAX = 5000  # runs of neighbours that one request cancels before anybody had them: a row each


def cancel_tasks(batch: Batch, array: ArrayJob, wanted: IdSet | None) -> None:
    """Ask for the end of some tasks, or of all. Those nobody has are over at once, the others by their agent's word."""
    unleased, array.todo = array.todo.split(wanted)
    kept_later: list[tuple[int, TaskSet]] = []
    for due_us, tasks in array.later:
        gone, rest = tasks.split(wanted)
        unleased = unleased.union(gone)
        if rest:
            kept_later.append((due_us, rest))
    array.later = kept_later
    array.cancelled += len(unleased)
    if wanted is None and array.is_damaged:
        # Which tasks nobody has is not known; how many is, if the array's own indexes can be read.
        array.cancelled += max(0, array.total - array.ok - array.failed - array.cancelled - array.live)
        array.is_damaged, array.was_damaged = False, True
    for each in array.ranges.values():
        for position in live_positions(each.tasks):
            if wanted is None or each.lo + position in wanted:
                task = replace(read_task(each.tasks, position), is_cancelling=True)
                each.tasks = write_task(each.tasks, position, task)
                each.is_changed = True
                batch.clusters.add(each.cluster_id or "")
    if wanted is not None and unleased:
        _insert_cancelled_ranges(batch, array, unleased)
    array.is_changed = True


def _insert_cancelled_ranges(batch: Batch, array: ArrayJob, tasks: TaskSet) -> None:
    """Keep that these tasks were cancelled before anybody had them."""
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
            {
                "job_id": array.row.id,
                "fence": array.fence + 1,
                "lo": lo,
                "hi": hi,
                "cluster_id": None,
                "agent_id": None,
                "tasks": write_task(new_task_states(1), 0, TaskState(State.CANCELLED)) * size,
                "is_live": False,
                "is_cancelling": False,
                "leased_us": batch.now_us,
                "ended_us": batch.now_us,
            }
        )
        array.fence += size
    ranges.range_insert(batch.tx, rows)
