"""Array jobs. An array is one row; a lease adds a row for a range of tasks. Tasks have the lifecycle of plain jobs.

The array's row stores the unleased tasks (`todo`, and `later` for tasks that wait for a retry) and counts the others.
Task `lo + i` of a range has the fence `fence + i`, so agents handle tasks like attempts of any job.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replace_task
from typing import Any

from msgspec.structs import replace

from switchyard.errors import BadRequest
from switchyard.model.cluster.idset import IdSet
from switchyard.model.cluster.poll import Report
from switchyard.model.job.event_kind import EVENT_OF_STATE, EventKind
from switchyard.model.job.job import CancelledTasks, OnLost, State
from switchyard.model.job.lifecycle import (
    ATTEMPTS_MAX,
    FINAL_STATES,
    LifecycleState,
    ObservedState,
    ReportAnswer,
    Transition,
    apply_report,
    mark_lost,
)
from switchyard.model.job.retry import Cause
from switchyard.model.job.task_states import (
    TaskState,
    cancelling_positions,
    live_positions,
    new_task_states,
    read_task,
    write_task,
)
from switchyard.model.job.taskset import TaskSet
from switchyard.model.rules.names import printable_line
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_job import ArrayJob, RangeState
from switchyard.service.lifecycle.array_spread import (
    add_avoided_tasks,
    keep_on_cluster,
    leave_refused_array,
    lessee_ids,
    may_run_elsewhere,
)
from switchyard.service.lifecycle.failure_notes import failure_of_step, note_failure
from switchyard.store.engine import ranges
from switchyard.store.engine.new_rows import RangeUpdate
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_columns import TALLY_COLUMNS, replaced_columns
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

PREEMPTED_WAIT_US = 1_000_000  # the array stays on its cluster: do not retry at once where a task was preempted
CANCELLED_RANGES_MAX = 5000  # ranges of unleased tasks that one request may cancel: each becomes a row


def read_on_lost(row: Any) -> OnLost:
    """Return the job's `on_lost`. An unreadable value becomes WAIT, the most cautious choice."""
    try:
        return OnLost(row.on_lost)
    except ValueError:
        log_unreadable("jobs", row.id, f"column on_lost: {row.on_lost!r}")
        return OnLost.WAIT


class BatchArrays:
    """The arrays that one batch changes: loaded once, written once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._jobs: dict[str, ArrayJob] = {}

    def load(self, rows: list[Any], *, is_tolerant: bool = True) -> None:
        """Load the arrays of locked rows, with their live ranges."""
        new_rows = list({row.id: row for row in rows if row.id not in self._jobs}.values())
        for row in new_rows:
            self._jobs[row.id] = ArrayJob.of(row, is_tolerant=is_tolerant)
        for row in ranges.range_live(self._batch.tx, [row.id for row in new_rows]) if new_rows else []:
            state = RangeState(row.job_id, row.fence, row.lo, row.hi, row.agent_id, row.cluster_id, row.tasks)
            state.leased_us = row.leased_us
            self._jobs[row.job_id].ranges[row.fence] = state
        for row in new_rows:
            if not replaced_columns(row).isdisjoint(TALLY_COLUMNS):
                self._jobs[row.id].count_live()

    def job(self, job_id: str) -> ArrayJob:
        return self._jobs[job_id]

    def report(
        self,
        agent_id: str | None,
        item: Report,
        again_at_us: int | None,
        *,
        is_preempted: bool = False,
        is_movable: bool = False,
        is_elsewhere: bool = False,
    ) -> ReportAnswer:
        """Apply a report on one task. `again_at_us`: when a failed task is retried.

        `agent_id` is None if the server reports a task as lost because its agent has been silent for too long.
        `is_movable`: an array of one cluster may go to another one if this cluster refuses it. `is_elsewhere`: the
        retry is left to the other clusters of the array, if any take it.
        """
        if is_preempted:
            again_at_us = self._batch.now_us + PREEMPTED_WAIT_US
        array = self._jobs[item.job]
        range_ = array.range_with(item.fence)
        if range_ is None or (agent_id is not None and range_.agent_id != agent_id):
            return ReportAnswer.STOP
        position = item.fence - range_.fence
        before = read_task(range_.tasks, position)
        if before.state is None or before.state in FINAL_STATES:
            return ReportAnswer.STALE if before.state in FINAL_STATES else ReportAnswer.STOP
        life = LifecycleState(
            state=before.state,
            attempt=self._attempt_of(array, item),
            fence=item.fence,
            is_leased=True,
            cancel_requested=before.is_cancelling or array.is_cancelling,
            on_lost=read_on_lost(array.row),
        )
        reason, is_refused = printable_line(item.reason), is_refused_before_start(item, before.state)
        if is_refused and is_movable and array.may_leave(range_):
            again_at_us = None  # the whole array goes to another cluster: no retry is counted
        elif is_refused:
            is_elsewhere = may_run_elsewhere(array.avoided, array.row, range_.cluster_id, range_.lo + position)
            is_refused = again_at_us is None and is_elsewhere
        item, is_again = replace(item, seen=ObservedState.RETURNED) if is_refused else item, again_at_us is not None
        if agent_id is None:
            answer, step = ReportAnswer.TAKEN, mark_lost(life, reason, definite=False, again=is_again, is_removed=True)
        else:
            answer, step = apply_report(
                life, fence=item.fence, seen=item.seen, reason=reason, again=is_again, is_preempted=is_preempted
            )
        if step is not None:
            if is_refused and step.event is EventKind.RETURNED:
                step = Transition(step.life, EventKind.REFUSED, step.reason)
            self._apply_step(array, range_, position=position, item=item, step=step, again_at_us=again_at_us)
            if is_elsewhere and step.event is EventKind.RETRYING and range_.cluster_id and array.row.spread:
                add_avoided_tasks(array.avoided, range_.cluster_id, [range_.lo + position], array=array.row.array)
            if (failure := failure_of_step(step, item)) is not None:
                place = range_.cluster_id
                note_failure(self._batch, array.row, failure, fence=item.fence, cluster_id=place, usage=item.usage)
        array.is_reported = True
        if item.seen is ObservedState.SUBMITTED and read_task(range_.tasks, position).state is State.SUBMITTED:
            array.note_waiting(reason)
        return answer

    def _attempt_of(self, array: ArrayJob, item: Report) -> int:
        """The attempts of a task, if there may be too many of them. Each attempt of a task takes a fence."""
        may_requeue = item.seen in (ObservedState.LOST, ObservedState.RETURNED)
        if not may_requeue or item.fence - array.total < ATTEMPTS_MAX - 1:
            return 1
        return ranges.task_attempts_count(self._batch.tx, array.row.id, item.fence)

    def _apply_step(
        self,
        array: ArrayJob,
        range_: RangeState,
        *,
        position: int,
        item: Report,
        step: Transition,
        again_at_us: int | None,
    ) -> None:
        state = step.life.state
        index = range_.lo + position
        if state is State.PENDING and array.is_damaged:
            state = State.FAILED  # no retry: `todo` is unreadable
        is_returned = state is State.PENDING
        before = read_task(range_.tasks, position)
        after = TaskState(
            None if is_returned else state,
            item.exit_code if state in FINAL_STATES or is_returned else None,
            item.signal if state in FINAL_STATES or is_returned else None,
            # Keep the cancel request until the task ends: the agent may not have received it yet.
            is_cancelling=state not in FINAL_STATES and not is_returned and before.is_cancelling,
            is_preempted=step.event == EventKind.PREEMPTED,
            is_unbegun=state is State.FAILED and is_refused_before_start(item, before.state),
        )
        # A task that the cluster preempted or that failed by itself has run, although no report saw it run.
        has_ended_run = is_returned and item.seen is ObservedState.FAILED and item.cause in (Cause.JOB, Cause.PREEMPTED)
        array.has_run |= not array.row.spread and (State.RUNNING in (before.state, state) or has_ended_run)
        range_.tasks = write_task(range_.tasks, position, after)
        range_.is_changed = array.is_changed = True
        if is_returned:
            array.live -= 1
            is_delayed = step.event == EventKind.RETRYING or again_at_us is not None
            array.returned.append((again_at_us or self._batch.now_us if is_delayed else None, index))
            self._leave_to_others(array, range_, index, item, step)
        elif state in FINAL_STATES:
            array.live -= 1
            array.ok += state is State.SUCCEEDED
            array.failed += state is State.FAILED
            array.cancelled += state is State.CANCELLED
        if is_returned or state in (State.FAILED, State.CANCELLED):
            reason = f"task {index}: {step.reason}".rstrip(": ")
            self._batch.event(
                array.row.id,
                step.event,
                state=array.state.value,
                attempt=array.row.attempt,
                fence=item.fence,
                cluster_id=range_.cluster_id,
                reason=reason,
                is_of_task=True,
            )
        if (is_returned or state in FINAL_STATES) and item.usage is not None and item.usage.differences:
            self._note_differences(array, range_, item, f"task {index}: {printable_line(item.usage.differences)}")

    def _note_differences(self, array: ArrayJob, range_: RangeState, item: Report, reason: str) -> None:
        self._batch.event(
            array.row.id,
            EventKind.DIFFERS,
            state=array.state.value,
            attempt=array.row.attempt,
            fence=item.fence,
            cluster_id=range_.cluster_id,
            reason=reason,
            is_of_task=True,
        )

    def _leave_to_others(self, array: ArrayJob, range_: RangeState, index: int, item: Report, step: Transition) -> None:
        """Note that the cluster gave this task back, lost it or refused it, unless the task itself is at fault."""
        is_job_fault = step.event == EventKind.RETRYING and item.cause is Cause.JOB
        is_refused = step.event is EventKind.REFUSED
        is_only_cluster = not array.row.spread and range_.cluster_id == array.row.cluster_id
        if range_.cluster_id and not is_job_fault and (array.row.spread or (is_refused and is_only_cluster)):
            add_avoided_tasks(array.avoided, range_.cluster_id, [index], array=array.row.array)
        if is_refused and array.row.spread:
            leave_refused_array(array.avoided, range_.cluster_id, array=array.row.array)
        elif is_refused and is_only_cluster:
            array.refusal = step.reason

    def refused_arrays(self) -> list[ArrayJob]:
        """Return the arrays whose only cluster refused them in this batch and has no task of them any more."""
        return [
            array
            for array in self._jobs.values()
            if array.refusal and array.is_refused and not (array.live or array.is_cancelling or array.is_damaged)
        ]

    def flush(self) -> None:
        """Write the changed arrays and ranges. An array ends with its last task."""
        batch = self._batch
        changed = [array for array in self._jobs.values() if array.is_changed]
        updates: dict[str, JobUpdate] = {}
        for array in changed:
            array.has_news |= bool(array.returned)
            array.return_tasks()
            array.keep_begun()
            old_state = array.state
            if array.end_if_over():
                _record_progress(batch, array, EVENT_OF_STATE[array.state], array.end_reason())
            elif array.live != array.row.tasks_live or array.state is not old_state:
                _record_progress(batch, array, EventKind.PROGRESS, "")
            update = array.update(batch.now_us)
            if array.is_reported and array.state is State.RUNNING:
                update = replace(update, reason=array.running_reason())
            updates[array.row.id] = update.then(array.departure)
            batch.free(array.row, array.row.tasks_live - array.live)
            if array.is_ready:
                batch.clusters |= _clusters_to_wake(array)
            if array.later:
                batch.topics.add(Topic.PENDING)
        jobs.job_update_many(batch.tx, updates)
        changed_ranges = [range_ for array in changed for range_ in array.ranges.values() if range_.is_changed]
        ranges.range_change(batch.tx, [_range_update(range_, batch.now_us) for range_ in changed_ranges])
        self._jobs = {}


def _clusters_to_wake(array: ArrayJob) -> set[str]:
    """Return the clusters whose agents may lease tasks now and could not before this change.

    While an array stays ready, the other clusters ask by themselves when they have room.
    """
    if array.has_news or not array.row.is_ready:
        return set(lessee_ids(array.row))
    changed = {range_.cluster_id for range_ in array.ranges.values() if range_.is_changed}
    return {cluster_id for cluster_id in (*changed, array.row.cluster_id) if cluster_id}


def _record_progress(batch: Batch, array: ArrayJob, kind: EventKind, reason: str) -> None:
    ended = array.ok + array.failed + array.cancelled
    batch.event(
        array.row.id,
        kind,
        state=array.state.value,
        attempt=array.row.attempt,
        fence=array.fence,
        cluster_id=array.row.cluster_id,
        reason=reason or f"{ended} tasks ended, {array.live} live, {array.left - array.live} left",
    )


def _range_update(range_: RangeState, now_us: int) -> RangeUpdate:
    return RangeUpdate(
        job_id=range_.job_id,
        fence=range_.fence,
        tasks=range_.tasks,
        is_live=range_.is_live,
        is_cancelling=bool(cancelling_positions(range_.tasks)),
        ended_us=None if range_.is_live else now_us,
    )


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """A range of tasks that an agent has just leased."""

    job_id: str
    fence: int
    lo: int
    hi: int
    attempt: int  # the same for all tasks of the range


def lease_tasks(
    batch: Batch, array: ArrayJob, cluster_id: str, agent_id: str, count: int, *, alternative: int | None = None
) -> list[LeasedRange]:
    """Lease the first `count` tasks. A range holds consecutive tasks with the same number of attempts.

    `alternative`: the number of the set that they get, of a job with alternatives.
    """
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
    for range_ in new:
        range_.leased_us = batch.now_us
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
                alternative=alternative,
            )
            for range_ in new
        ],
    )
    return leased


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
                task = replace_task(read_task(range_.tasks, position), is_cancelling=True)
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
                alternative=None,
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


def is_refused_before_start(item: Report, state: State | None) -> bool:
    """Return whether nothing of the attempt ran. Without a native id the batch system never had it.

    An attempt that the batch system had may have run in part, although nobody saw it run: it is not given to others.
    """
    is_cluster_fault = item.seen is ObservedState.FAILED and item.cause is Cause.CLUSTER
    return is_cluster_fault and item.native_id is None and state is not State.RUNNING
