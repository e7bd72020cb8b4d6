"""Arrays: one row until leased; a lease cuts a range of tasks; each task lives by the same table as a plain job.

The row of an array keeps what is left (`todo`, and `later` for what waits for a retry) and the tally of the rest. Task
`lo + i` of a range runs under the fence `fence + i`, so an agent sees only attempts with fences, as of any job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from switchyard.model.idset import IdSet
from switchyard.model.job import OnLost, State
from switchyard.model.lifecycle import FINAL_STATES, LifecycleState, ReportAnswer, Transition, apply_report, mark_lost
from switchyard.model.names import printable_line
from switchyard.model.poll import Report
from switchyard.model.task_states import (
    TaskState,
    cancelling_positions,
    live_positions,
    new_task_states,
    read_task,
    write_task,
)
from switchyard.model.taskset import TaskSet, add_delayed_tasks, read_delayed_tasks, write_delayed_tasks
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.service.committer import Batch
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.store import jobs, ranges
from switchyard.store.job_columns import TALLY_COLUMNS, replaced_columns

PREEMPTED_WAIT_US = 1_000_000  # an array stays where it is: not at once again into the place that was taken away


def read_on_lost(row: Any) -> OnLost:
    """The least that can be done about a loss, where the row's own word cannot be read."""
    try:
        return OnLost(row.on_lost)
    except ValueError:
        log_unreadable("jobs", row.id, f"column on_lost: {row.on_lost!r}")
        return OnLost.WAIT


@dataclass
class ArrayJob:
    """An array as it becomes within one batch."""

    row: Any
    state: State
    fence: int
    total: int
    todo: TaskSet
    later: list[tuple[int, TaskSet]]
    live: int
    ok: int
    failed: int
    cancelled: int
    is_cancelling: bool
    places: int | None = None  # how many its limited queue lets run at once
    is_changed: bool = False
    # Its sets of tasks cannot be read: they stay as they are stored, nothing is leased, and it does not end by itself.
    is_damaged: bool = False
    was_damaged: bool = False  # and was cancelled: which tasks nobody had is not known
    ranges: dict[int, RangeState] = field(default_factory=dict)
    returned: list[tuple[int | None, int]] = field(default_factory=list)  # tasks to be tried again, and when

    @staticmethod
    def of(row: Any, *, is_tolerant: bool = False) -> ArrayJob:
        """`is_tolerant`: one whose sets cannot be read is no error, as its tasks that agents have go on and end."""
        is_damaged, total, todo, later = False, 0, TaskSet(row.array), []
        is_cancelling = row.cancel_us is not None
        try:
            total = len(IdSet.parse(row.array))
            todo, later = TaskSet.read(row.todo, row.array), read_delayed_tasks(row.later, row.array)
        except UNREADABLE_ERRORS:
            if not is_tolerant:
                raise
            is_damaged = True
        return ArrayJob(
            row=row,
            state=State(row.state),
            fence=row.fence,
            total=total,
            todo=todo,
            later=later,
            is_damaged=is_damaged and not is_cancelling,
            was_damaged=is_damaged and is_cancelling,
            live=row.tasks_live,
            ok=row.tasks_ok,
            failed=row.tasks_failed,
            cancelled=row.tasks_cancelled,
            is_cancelling=is_cancelling,
            places=row.places,
        )

    @property
    def spare(self) -> int:
        """How many more tasks may run at once."""
        bounds = [bound for bound in (self.row.array_max, self.places) if bound is not None]
        return max(0, min(bounds) - self.live) if bounds else len(self.todo)

    @property
    def left(self) -> int:
        """The tasks that have not ended."""
        return self.live + len(self.todo) + sum(len(tasks) for _, tasks in self.later)

    @property
    def may_have_gone_back(self) -> bool:
        """Whether a task in `todo` was perhaps handed over before: then there were more fences than tasks taken."""
        return bool(self.fence - self.row.attempt > self.total - self.left + self.live)

    @property
    def is_ready(self) -> bool:
        return self.state in (State.ASSIGNED, State.RUNNING) and bool(self.todo) and self.spare > 0

    @property
    def is_over(self) -> bool:
        return not self.todo and not self.later and self.live == 0 and not self.is_damaged

    def take_back(self) -> None:
        """Put the tasks that are to be tried again back among those that nobody has."""
        if not self.returned:
            return
        by_time: dict[int | None, list[int]] = {}
        for due_us, index in self.returned:
            by_time.setdefault(due_us, []).append(index)
        self.returned = []
        nobody = TaskSet(self.row.array)
        self.todo = self.todo.plus(by_time.pop(None, ()))
        waiting = [(due_us, nobody.plus(some)) for due_us, some in by_time.items() if due_us is not None]
        self.later = add_delayed_tasks(self.later, waiting)

    def count_live(self) -> None:
        """Of a damaged row the number of live tasks is not trusted: the ranges say it."""
        self.is_damaged = not self.is_cancelling
        self.was_damaged = self.is_cancelling
        self.live = sum(len(live_positions(each.tasks)) for each in self.ranges.values())

    def range_with(self, fence: int) -> RangeState | None:
        return next(
            (each for each in self.ranges.values() if each.fence <= fence <= each.fence + each.hi - each.lo), None
        )

    def columns(self, now_us: int) -> dict[str, Any]:
        """The columns of the row as they are now."""
        change: dict[str, Any] = {
            "state": self.state.value,
            "fence": self.fence,
            "tasks_live": self.live,
            "tasks_ok": self.ok,
            "tasks_failed": self.failed,
            "tasks_cancelled": self.cancelled,
            "is_ready": self.is_ready,
        }
        if not self.is_damaged:
            change |= {"todo": str(self.todo), "later": write_delayed_tasks(self.later)}
        if self.places is not None and not self.is_damaged:
            change["places"] = min(self.places, self.left)  # what it cannot use any more is others'
        if self.row.state == State.ASSIGNED.value and self.state is State.RUNNING:
            change |= dict.fromkeys(("expires_us", "late_from_us"))
            change |= {"leased_us": now_us, "started_us": self.row.started_us or now_us}  # some may run elsewhere
        if self.later:
            change["wake_us"] = min(due for due, _ in self.later)
        if self.state in FINAL_STATES:
            change |= {"ended_us": now_us, "reason": self.verdict(), "wake_us": None}
        return change

    def verdict(self) -> str:
        if self.was_damaged:
            return "cancelled; its row could not be read"
        parts = [f"{self.failed} failed"] * bool(self.failed) + [f"{self.cancelled} cancelled"] * bool(self.cancelled)
        return f"of {self.total} tasks: {', '.join(parts)}" if parts else ""

    def end_if_over(self) -> bool:
        """Whether the last task's end was the array's."""
        if not self.is_over or self.state in FINAL_STATES:
            return False
        if self.failed:
            self.state = State.FAILED
        elif self.cancelled or self.was_damaged:
            self.state = State.CANCELLED
        else:
            self.state = State.SUCCEEDED
        return True


@dataclass
class RangeState:
    """A live range as it becomes within one batch."""

    job_id: str
    fence: int
    lo: int
    hi: int
    agent_id: str
    cluster_id: str | None
    tasks: bytes
    is_changed: bool = False

    @property
    def is_live(self) -> bool:
        return bool(live_positions(self.tasks))


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """A range that was just cut for an agent."""

    job_id: str
    fence: int
    lo: int
    hi: int
    attempt: int  # of each of its tasks


def lease_tasks(batch: Batch, array: ArrayJob, agent_id: str, count: int) -> list[LeasedRange]:
    """Lease the first `count` tasks, as one range per run of neighbours that were handed over equally often."""
    cuts: list[LeasedRange] = []
    is_again = array.may_have_gone_back
    taken, array.todo = array.todo.take(count)
    for lo, hi in taken.spans():
        before = ranges.range_spans(batch.tx, array.row.id, lo, hi) if is_again else []
        first = lo
        while first <= hi:
            last = min([hi, *(edge for a, b in before for edge in (a - 1, b) if edge >= first)])
            cuts.append(
                LeasedRange(array.row.id, array.fence + 1, first, last, 1 + sum(a <= first <= b for a, b in before))
            )
            array.fence += last - first + 1
            array.live += last - first + 1
            array.is_changed = True
            first = last + 1
    array.state = State.RUNNING if array.state is State.ASSIGNED else array.state
    ranges.range_insert(
        batch.tx,
        [
            {
                "job_id": each.job_id,
                "fence": each.fence,
                "lo": each.lo,
                "hi": each.hi,
                "cluster_id": array.row.cluster_id,
                "agent_id": agent_id,
                "tasks": new_task_states(each.hi - each.lo + 1),
                "is_live": True,
                "is_cancelling": False,
                "leased_us": batch.now_us,
                "ended_us": None,
            }
            for each in cuts
        ],
    )
    return cuts


class BatchArrays:
    """The arrays touched by one batch: loaded once, written back once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._jobs: dict[str, ArrayJob] = {}

    def load(self, rows: list[Any], *, is_tolerant: bool = True) -> None:
        """Take up locked rows of arrays, with their live ranges."""
        new = [row for row in rows if row.id not in self._jobs]
        for row in new:
            self._jobs[row.id] = ArrayJob.of(row, is_tolerant=is_tolerant)
        for row in ranges.range_live(self._batch.tx, [row.id for row in new]) if new else []:
            state = RangeState(row.job_id, row.fence, row.lo, row.hi, row.agent_id, row.cluster_id, row.tasks)
            self._jobs[row.job_id].ranges[row.fence] = state
        for row in new:
            if not replaced_columns(row).isdisjoint(TALLY_COLUMNS):
                self._jobs[row.id].count_live()

    def job(self, job_id: str) -> ArrayJob:
        return self._jobs[job_id]

    def report(
        self, agent_id: str | None, item: Report, again_at_us: int | None, *, is_preempted: bool = False
    ) -> ReportAnswer:
        """What an agent says of one task. `again_at_us`: when a failure is tried again.

        No agent: the server itself, of a task whose agent was silent for longer than the job bears.
        """
        if is_preempted:
            again_at_us = self._batch.now_us + PREEMPTED_WAIT_US
        array = self._jobs[item.job]
        found = array.range_with(item.fence)
        if found is None or (agent_id is not None and found.agent_id != agent_id):
            return ReportAnswer.STOP
        position = item.fence - found.fence
        before = read_task(found.tasks, position)
        if before.state is None or before.state in FINAL_STATES:
            return ReportAnswer.STALE if before.state in FINAL_STATES else ReportAnswer.STOP
        life = LifecycleState(
            state=before.state,
            attempt=1,
            fence=item.fence,
            is_leased=True,
            cancel_requested=before.is_cancelling or array.is_cancelling,
            on_lost=read_on_lost(array.row),
        )
        again, why = again_at_us is not None, printable_line(item.reason)
        if agent_id is None:
            answer, step = ReportAnswer.TAKEN, mark_lost(life, why, definite=False, again=again, is_removed=True)
        else:
            answer, step = apply_report(
                life, fence=item.fence, seen=item.seen, reason=why, again=again, is_preempted=is_preempted
            )
        if step is not None:
            self._take(array, found, position=position, item=item, step=step, again_at_us=again_at_us)
        return answer

    def _take(
        self,
        array: ArrayJob,
        found: RangeState,
        *,
        position: int,
        item: Report,
        step: Transition,
        again_at_us: int | None,
    ) -> None:
        state = step.life.state
        index = found.lo + position
        if state is State.PENDING and array.is_damaged:
            state = State.FAILED  # the set that it would go back to cannot be read
        went_back = state is State.PENDING
        after = TaskState(
            None if went_back else state,
            item.exit_code if state in FINAL_STATES or went_back else None,
            item.signal if state in FINAL_STATES or went_back else None,
            # That its end was asked for stays until the end: the agent may not have heard of it yet.
            is_cancelling=state not in FINAL_STATES
            and not went_back
            and read_task(found.tasks, position).is_cancelling,
            is_preempted=step.event == "preempted",
        )
        found.tasks = write_task(found.tasks, position, after)
        found.is_changed = array.is_changed = True
        if went_back:
            array.live -= 1
            is_later = step.event == "retrying" or again_at_us is not None
            array.returned.append((again_at_us or self._batch.now_us if is_later else None, index))
        elif state in FINAL_STATES:
            array.live -= 1
            array.ok += state is State.SUCCEEDED
            array.failed += state is State.FAILED
            array.cancelled += state is State.CANCELLED
        if went_back or state in (State.FAILED, State.CANCELLED):
            said = f"task {index}: {step.reason}".rstrip(": ")
            self._batch.event(
                array.row.id,
                f"task-{step.event}",
                state=array.state.value,
                attempt=array.row.attempt,
                fence=item.fence,
                cluster_id=found.cluster_id,
                reason=said,
            )

    def flush(self) -> None:
        """Write back what changed; an array whose last task ended has ended."""
        batch = self._batch
        changed = [array for array in self._jobs.values() if array.is_changed]
        changes: dict[str, dict[str, Any]] = {}
        for array in changed:
            array.take_back()
            was = array.state
            if array.end_if_over():
                _record_progress(batch, array, array.state.value.lower(), array.verdict())
            elif array.live != array.row.tasks_live or array.state is not was:
                _record_progress(batch, array, "progress", "")
            changes[array.row.id] = array.columns(batch.now_us)
            batch.free(array.row, array.row.tasks_live - array.live)
            if array.is_ready and array.row.cluster_id:
                batch.clusters.add(array.row.cluster_id)
            if array.later:
                batch.versions.add("pending")
        jobs.job_update_many(batch.tx, changes)
        touched = [each for array in changed for each in array.ranges.values() if each.is_changed]
        ranges.range_change(batch.tx, [_range_columns(each, batch.now_us) for each in touched])
        self._jobs = {}


def _record_progress(batch: Batch, array: ArrayJob, kind: str, reason: str) -> None:
    done = array.ok + array.failed + array.cancelled
    said = reason or f"{done} tasks ended, {array.live} live, {array.left - array.live} left"
    batch.event(
        array.row.id,
        kind,
        state=array.state.value,
        attempt=array.row.attempt,
        fence=array.fence,
        cluster_id=array.row.cluster_id,
        reason=said,
    )


def _range_columns(each: RangeState, now_us: int) -> dict[str, Any]:
    return {
        "the_job": each.job_id,
        "the_fence": each.fence,
        "the_tasks": each.tasks,
        "the_live": each.is_live,
        "the_cancelling": bool(cancelling_positions(each.tasks)),
        "the_end": None if each.is_live else now_us,
    }
