"""Calls of the API on threads of their own: an API that hangs holds up the caller for a moment only.

A caller waits for its own call, but not beyond `WAIT_S` after the oldest one that is under way began. So a hundred
callers in a row wait as long as one. An answer that comes later is kept for the next caller.

Calls belong to groups, such as namespaces. Each group has a bound of its own: calls of one group that all hang leave
room for the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from switchyard.errors import Unavailable, YardError

CALL_WAIT_S = 2.0  # a look-up has three reads; on a busy cluster each takes a few tenths of a second

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Call(Generic[R]):
    began_s: float
    answer: Future[R]


@dataclass(frozen=True, slots=True)
class _RunningCall:
    began_s: float
    group: str


class BackgroundCalls(Generic[R]):
    """Used by several threads. At most one call of a name counts at a time."""

    def __init__(self, kind: str, *, at_once: int, keep_s: float, group_at_once: int | None = None) -> None:
        """`kind`: for the names of threads. `keep_s`: an answer that nobody took is dropped so long after the begin.

        `at_once`: how many calls may be under way; `group_at_once`: how many of one group, if fewer.
        """
        self._kind = kind
        self._at_once = at_once
        self._group_at_once = at_once if group_at_once is None else group_at_once
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._calls: dict[str, _Call[R]] = {}  # by the name of the object that they are about
        self._running: dict[int, _RunningCall] = {}  # by the numbers of calls under way
        self._number = 0

    def has_room(self, group: str = "") -> bool:
        """Whether fewer calls are under way than there may be, of all groups and of this one."""
        with self._lock:
            return self._has_room(group)

    def has(self, name: str) -> bool:
        """Whether a call of this name is under way, or its answer was not taken."""
        return name in self._calls

    def begin(self, name: str, call: Callable[[], R], *, group: str = "") -> bool:
        """Begin a call, unless there is one of this name. False: as many are under way as there may be."""
        now = time.monotonic()
        with self._lock:
            if name in self._calls:
                return True
            self._drop_old(now)
            if not self._has_room(group):
                return False
            self._number += 1
            number, new = self._number, _Call(now, Future[R]())
            self._calls[name] = new
            self._running[number] = _RunningCall(now, group)
        title = f"{self._kind}-{number}"
        threading.Thread(target=self._run, args=(name, call, new, number), name=title, daemon=True).start()
        return True

    def take(self, name: str) -> R | None:
        """The answer of the call that was begun; None: the API has not answered yet. Raises the error of the call."""
        with self._lock:
            call = self._calls.get(name)
            oldest_s = min((running.began_s for running in self._running.values()), default=0.0)
        if call is None:
            return None
        wait([call.answer], max(0.0, oldest_s + CALL_WAIT_S - time.monotonic()))
        if not call.answer.done():
            return None
        with self._lock:
            if self._calls.get(name) is call:
                del self._calls[name]
        return call.answer.result()

    def discard(self, name: str) -> None:
        """Drop the answer of a call, also one that is still to come."""
        with self._lock:
            self._calls.pop(name, None)

    def _has_room(self, group: str) -> bool:
        of_group = sum(running.group == group for running in self._running.values())
        return len(self._running) < self._at_once and of_group < self._group_at_once

    def _drop_old(self, now: float) -> None:
        old = [name for name, call in self._calls.items() if call.answer.done() and now - call.began_s > self._keep_s]
        for name in old:
            del self._calls[name]

    def _run(self, name: str, call: Callable[[], R], new: _Call[R], number: int) -> None:
        # What is told after a defect, whose traceback is this thread's. Transient: the call may have been carried out.
        error: YardError | None = Unavailable(f"A call about {name} ended by a defect, which the agent's log shows.")
        answers: list[R] = []
        try:
            answers.append(call())
            error = None
        except YardError as exc:
            error = exc
        finally:
            with self._lock:
                del self._running[number]
            if error is not None:
                new.answer.set_exception(error)
            else:
                new.answer.set_result(answers[0])
