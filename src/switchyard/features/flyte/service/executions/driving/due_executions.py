"""Finds the executions that something has happened to, and the order in which their owners take turns.

The ends of jobs are read from the events: a round costs what has happened since the last one, however many jobs are
live. A new leader, and any leader from time to time, reads all live attempts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from switchyard.features.flyte.store.executions import execution_due
from switchyard.features.flyte.store.executions.execution_due import DueExecution
from switchyard.service.core.context import Context
from switchyard.store.jobs.events import counters_read

DUE_MAX = 50_000  # executions of one round; the limits of users and projects bound how many there are
EVENTS_MAX = 10_000  # that one round reads
FULL_LOOK_US = 60_000_000  # between two reads of all live attempts, in case an event was missed


@dataclass
class DueExecutions:
    """What is due, and a cursor of the events."""

    epoch: int | None = None  # the term in which the cursor was set
    cursor: int = 0
    looked_us: int = 0  # when all live attempts were read, on the steady clock
    candidates: dict[str, None] = field(default_factory=dict)  # executions with an ended job that no step has stored
    news: frozenset[str] = frozenset()  # executions with news of children, of the cache or of the clock
    mapped: dict[str, bool] = field(default_factory=dict)  # executions with live maps: whether these have news

    def read(self, context: Context, epoch: int | None) -> list[DueExecution]:
        now_us = context.steady_us()
        with context.database.read() as tx:
            if epoch != self.epoch or now_us - self.looked_us > FULL_LOOK_US:
                self.cursor = counters_read(tx).get("events", 0)  # first: an end from here on has a higher number
                self.candidates = dict.fromkeys(execution_due.executions_with_ended_jobs(tx))
                self.epoch, self.looked_us = epoch, now_us
            else:
                jobs, self.cursor = execution_due.jobs_ended_after(tx, self.cursor, limit=EVENTS_MAX)
                self.candidates |= dict.fromkeys(execution_due.executions_of_jobs(tx, jobs))
            due = {row.id: row for row in execution_due.marked_due(tx, limit=DUE_MAX)}
            news = execution_due.executions_with_news(tx, context.now_us())
            self.news = frozenset(news)
            self.mapped = execution_due.executions_with_maps(tx)
            news += [one for one, has_news in self.mapped.items() if has_news]
            rest = [one for one in dict.fromkeys([*self.candidates, *news]) if one not in due][:DUE_MAX]
            due |= {row.id: row for row in execution_due.executions_by_id(tx, rest)}
        return list(due.values())

    def note(self, execution_id: str) -> None:
        """An execution has to be looked at again."""
        self.candidates[execution_id] = None

    def forget(self, execution_id: str) -> None:
        """A step has stored all ends of this execution that there are."""
        self.candidates.pop(execution_id, None)


class OwnerTurns:
    """Gives turns to owners by the time that their executions took, and to the executions of an owner in a circle.

    A new owner begins with as much as the owner that used least, so that neither old nor new owners wait for long.
    """

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = {}
        self._last: dict[str, int] = {}  # execution → number of its last turn
        self._turn = 0

    def order(self, due: Iterable[DueExecution]) -> Iterator[DueExecution]:
        """Yield executions, each once. Call `spend` after each."""
        waiting: dict[str, deque[DueExecution]] = {}
        rows = sorted(due, key=lambda row: (self._last.get(row.id, 0), row.id))
        for row in rows:
            waiting.setdefault(row.owner_id, deque()).append(row)
        least = min((self._spent_s[owner] for owner in waiting if owner in self._spent_s), default=0.0)
        # Owners without anything due start again at `least` when they come back: time is not saved up.
        self._spent_s = {owner: max(least, self._spent_s.get(owner, least)) for owner in waiting}
        self._last = {row.id: self._last[row.id] for row in rows if row.id in self._last}
        while waiting:
            owner = min(waiting, key=lambda one: (self._spent_s[one], one))
            row = waiting[owner].popleft()
            if not waiting[owner]:
                del waiting[owner]
            self._turn += 1
            self._last[row.id] = self._turn
            yield row

    def spend(self, owner_id: str, seconds: float) -> None:
        self._spent_s[owner_id] = self._spent_s.get(owner_id, 0.0) + seconds
