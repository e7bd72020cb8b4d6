"""Lease tasks of an array: cut ranges of consecutive tasks from the tasks that no agent has."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.job.job import State
from switchyard.model.job.task_states import new_task_states
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_job import ArrayJob, RangeState
from switchyard.service.lifecycle.together import keep_on_cluster
from switchyard.store.engine import ranges


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """A range of tasks that an agent has just leased."""

    job_id: str
    fence: int
    lo: int
    hi: int
    attempt: int  # the same for all tasks of the range


def lease_tasks(batch: Batch, array: ArrayJob, cluster_id: str, agent_id: str, count: int) -> list[LeasedRange]:
    """Lease the first `count` tasks. A range holds consecutive tasks with the same number of attempts."""
    leased: list[LeasedRange] = []
    may_have_retries = array.may_have_retries
    leasable, left_to_others = array.split_todo(cluster_id)
    taken, rest = leasable.take(count)
    array.todo = rest.union(left_to_others)
    for lo, hi in taken.spans():
        earlier = ranges.range_spans(batch.tx, array.row.id, lo, hi) if may_have_retries else []
        first = lo
        while first <= hi:
            last = min([hi, *(edge for a, b in earlier for edge in (a - 1, b) if edge >= first)])
            attempt = 1 + sum(a <= first <= b for a, b in earlier)
            leased.append(LeasedRange(array.row.id, array.fence + 1, first, last, attempt))
            array.fence += last - first + 1
            array.live += last - first + 1
            array.is_changed = True
            first = last + 1
    if leased:
        array.bounds = keep_on_cluster(array.bounds, cluster_id)
    array.state = State.RUNNING if array.state is State.ASSIGNED else array.state
    new = [
        RangeState(cut.job_id, cut.fence, cut.lo, cut.hi, agent_id, cluster_id, new_task_states(cut.hi - cut.lo + 1))
        for cut in leased
    ]
    array.ranges |= {range_.fence: range_ for range_ in new}
    ranges.range_insert(
        batch.tx,
        [
            ranges.RangeRow(
                job_id=range_.job_id,
                fence=range_.fence,
                lo=range_.lo,
                hi=range_.hi,
                cluster_id=cluster_id,
                agent_id=agent_id,
                tasks=range_.tasks,
                is_live=True,
                is_cancelling=False,
                leased_us=batch.now_us,
                ended_us=None,
            )
            for range_ in new
        ],
    )
    return leased
