"""An array in memory, while a batch changes it: its unleased tasks, its counts and its live ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.task_states import count_running, count_submitted, live_positions
from switchyard.model.job.taskset import TaskSet, add_delayed_tasks, read_delayed_tasks, write_delayed_tasks
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.service.lifecycle.array_spread import (
    BEGUN,
    free_from_cluster,
    lessee_ids,
    read_avoided_tasks,
    tasks_for_others,
    write_avoided_tasks,
)
from switchyard.store.jobs.job_update import JobUpdate

TASK_WAITS = "a task has not begun: "  # before what an agent said of a task that waits at its cluster


@dataclass
class ArrayJob:
    """The state of an array while a batch changes it."""

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
    places: int | None = None  # tasks that the limited queue lets run at once
    is_changed: bool = False
    # `todo` and `later` are unreadable: they stay as stored, no task is leased, and the array does not end by itself.
    is_damaged: bool = False
    was_damaged: bool = False  # a damaged array that was cancelled: its unleased tasks are unknown
    ranges: dict[int, RangeState] = field(default_factory=dict)
    returned: list[tuple[int | None, int]] = field(default_factory=list)  # tasks to retry: time (none: now), index
    avoided: dict[str, TaskSet] = field(default_factory=dict)  # tasks that clusters leave to others, by cluster
    has_run: bool = False  # a task of an array of one cluster has run, whether it ended or went back to be retried
    has_news: bool = False  # tasks came back, or are avoided by one more cluster: all lessees are woken
    refusal: str = ""  # why its only cluster refused a task in this batch, before anything of the array began
    bounds: str = ""  # as stored; those of an array together name the cluster that has leased tasks of it
    is_reported: bool = False  # the batch has a report on one of its tasks
    waiting: str | None = None  # of the reports: the last reason of a task that waits at its cluster
    departure: JobUpdate = field(default_factory=JobUpdate)  # further changes of an array that leaves its cluster

    @staticmethod
    def of(row: Any, *, is_tolerant: bool = False) -> ArrayJob:
        """Return the array of a row. `is_tolerant`: accept unreadable task sets, so that leased tasks can still end."""
        is_damaged, total, todo, later = False, 0, TaskSet(row.array), []
        is_cancelling, avoided = row.cancel_us is not None, dict[str, TaskSet]()
        try:
            total = len(IdSet.parse(row.array))
            todo, later = TaskSet.read(row.todo, row.array), read_delayed_tasks(row.later, row.array)
            avoided = read_avoided_tasks(row.task_avoid, row.array)
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
            avoided=avoided,
            has_run=not row.spread and row.task_avoid == BEGUN,
            bounds=row.bounds,
        )

    @property
    def spare(self) -> int:
        """The number of further tasks that may run now."""
        bounds = [bound for bound in (self.row.array_max, self.places) if bound is not None]
        return max(0, min(bounds) - self.live) if bounds else len(self.todo)

    @property
    def left(self) -> int:
        """The number of tasks that have not ended."""
        return self.live + len(self.todo) + sum(len(tasks) for _, tasks in self.later)

    @property
    def may_have_retries(self) -> bool:
        """Whether a task in `todo` may have been leased before: then more fences were used than tasks leased."""
        return bool(self.fence - self.row.attempt > self.total - self.left + self.live)

    @property
    def is_ready(self) -> bool:
        is_leasable = self.state in (State.ASSIGNED, State.RUNNING) and bool(self.todo) and self.spare > 0
        return is_leasable and not (self.live and self.is_refused)

    @property
    def has_begun(self) -> bool:
        """Whether a task runs or has run. The caller has loaded the live ranges, or `keep_begun` stored the answer."""
        has_run = self.has_run or bool(self.ok or self.failed)
        return has_run or any(count_running(range_.tasks) for range_ in self.ranges.values())

    @property
    def is_refused(self) -> bool:
        """Whether the only cluster of the array refused tasks, and nothing of it began: it leases no more there.

        The array goes to another cluster when the last task is back that the cluster still has.
        """
        return not self.row.spread and self.row.cluster_id in self.avoided and not self.has_begun

    def may_leave(self, range_: RangeState) -> bool:
        """Whether a task that this range's cluster refused goes on elsewhere, with all others of an array together."""
        is_only_cluster = range_.cluster_id == self.row.cluster_id
        return not self.row.spread and not (is_only_cluster and self.has_begun)

    def keep_begun(self) -> None:
        """Note for later batches that an array of one cluster has begun: then no refusal moves it or stops its leases.

        The row must tell that by itself: some readers do not load the ranges, and a task that ran may go back.
        """
        if not self.row.spread and self.has_begun:
            self.has_run, self.avoided = True, {}

    @property
    def is_over(self) -> bool:
        return not self.todo and not self.later and self.live == 0 and not self.is_damaged

    def split_todo(self, cluster_id: str) -> tuple[TaskSet, TaskSet]:
        """Return the unleased tasks that a cluster may lease, and those that it leaves to other clusters."""
        left_to_others = tasks_for_others(self.avoided, cluster_id, lessee_ids(self.row)) if self.avoided else None
        if left_to_others is None:
            return self.todo, TaskSet(self.row.array)
        avoided, leasable = self.todo.split(left_to_others)
        return leasable, avoided

    def return_tasks(self) -> None:
        """Move the tasks to retry from `returned` to `todo` and `later`."""
        if not self.returned:
            return
        by_time: dict[int | None, list[int]] = {}
        for due_us, index in self.returned:
            by_time.setdefault(due_us, []).append(index)
        self.returned = []
        no_tasks = TaskSet(self.row.array)
        self.todo = self.todo.plus(by_time.pop(None, ()))
        delayed = [(due_us, no_tasks.plus(indexes)) for due_us, indexes in by_time.items() if due_us is not None]
        self.later = add_delayed_tasks(self.later, delayed)

    def count_live(self) -> None:
        """Mark the array as damaged and count its live tasks from the ranges: the row's count is not reliable."""
        self.is_damaged = not self.is_cancelling
        self.was_damaged = self.is_cancelling
        self.live = sum(len(live_positions(range_.tasks)) for range_ in self.ranges.values())

    def range_with(self, fence: int) -> RangeState | None:
        return next(
            (
                range_
                for range_ in self.ranges.values()
                if range_.fence <= fence <= range_.fence + range_.hi - range_.lo
            ),
            None,
        )

    def update(self, now_us: int) -> JobUpdate:
        """Return the changed columns of the row."""
        update = JobUpdate(
            state=self.state,
            fence=self.fence,
            tasks_live=self.live,
            tasks_ok=self.ok,
            tasks_failed=self.failed,
            tasks_cancelled=self.cancelled,
            is_ready=self.is_ready,
        )
        if not self.is_damaged:
            update = replace(update, todo=str(self.todo), later=write_delayed_tasks(self.later))
            avoid = BEGUN if self.has_run else write_avoided_tasks(self.avoided)
            update = replace(update, task_avoid=avoid) if avoid not in (None, self.row.task_avoid) else update
            if not self.live and not self.has_begun:
                self.bounds = free_from_cluster(self.bounds)
            update = replace(update, bounds=self.bounds) if self.bounds != self.row.bounds else update
        if self.places is not None and not self.is_damaged:
            update = replace(update, places=min(self.places, self.left))  # unused places become free
        if self.row.state == State.ASSIGNED.value and self.state is State.RUNNING:
            started_us = self.row.started_us or now_us  # tasks may have started on another cluster
            update = replace(update, expires_us=None, late_from_us=None, leased_us=now_us, started_us=started_us)
        if self.later:
            update = replace(update, wake_us=min(due for due, _ in self.later))
        if self.state in FINAL_STATES:
            update = replace(update, ended_us=now_us, reason=self.end_reason(), wake_us=None)
        return update

    def note_waiting(self, reason: str) -> None:
        """Keep what an agent says of a task that waits at its cluster: it is stored as the reason of the array."""
        self.waiting = f"{TASK_WAITS}{reason}" if reason else ""
        # Without a count of the tasks: thousands of them may report in one batch.
        self.is_changed = self.is_changed or (self._is_reason_of_tasks and self.waiting != self.row.reason)

    def running_reason(self) -> str:
        """Return the reason of a running array after reports. The caller has loaded the whole row and the live ranges.

        It goes away when no task waits at its cluster any more. A reason of another origin stays.
        """
        stored = str(self.row.reason)
        if self.is_damaged or not self._is_reason_of_tasks:
            return stored
        if not any(count_submitted(range_.tasks) for range_ in self.ranges.values()):
            return ""
        return stored if self.waiting is None else self.waiting

    @property
    def _is_reason_of_tasks(self) -> bool:
        return not self.row.reason or str(self.row.reason).startswith(TASK_WAITS)

    def end_reason(self) -> str:
        if self.was_damaged:
            return "cancelled; its row could not be read"
        parts = [f"{self.failed} failed"] * bool(self.failed) + [f"{self.cancelled} cancelled"] * bool(self.cancelled)
        return f"of {self.total} tasks: {', '.join(parts)}" if parts else ""

    def end_if_over(self) -> bool:
        """Set the final state if all tasks have ended. Returns whether the array ended now."""
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
    """The state of a live range while a batch changes it."""

    job_id: str
    fence: int
    lo: int
    hi: int
    agent_id: str
    cluster_id: str | None
    tasks: bytes
    is_changed: bool = False
    leased_us: int = 0

    @property
    def is_live(self) -> bool:
        return bool(live_positions(self.tasks))
