"""Looks up whether Jobs were created, on threads of its own: an API that hangs holds up the caller for a moment only.

A caller waits for its own look-up, but not beyond `WAIT_S` after the oldest one that is under way began. So a hundred
callers in a row wait as long as one. An answer that comes later is kept for the next caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from switchyard.agent.backends.kubernetes.objects import JobObject
from switchyard.agent.backends.kubernetes.submitted_job import SubmittedJob
from switchyard.errors import Internal, YardError

AT_ONCE = 8
WAIT_S = 2.0  # a look-up has three reads; on a busy cluster each takes a few tenths of a second
KEEP_S = 60.0  # an answer that nobody fetched is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTraces:
    """What a look-up found: the Job, or that it was there (pods, events), or nothing."""

    began_s: float  # by the monotonic clock
    job: JobObject | None = None
    is_vanished: bool = False


@dataclass(slots=True)
class _Lookup:
    began_s: float
    traces: JobTraces | None = None
    error: YardError | None = None
    done: threading.Event = field(default_factory=threading.Event)


class JobLookups:
    """Used by several threads. Look-ups only read: what follows from an answer is the caller's."""

    def __init__(self, read: Callable[[SubmittedJob], JobTraces]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._lookups: dict[str, _Lookup] = {}  # by the name of the Job
        self._running: dict[int, float] = {}  # numbers of look-ups under way → when each began
        self._number = 0

    def get(self, job: SubmittedJob) -> JobTraces | None:
        """What a look-up shows that began after the last `discard`; None: the API has not answered yet.

        Raises the error of the look-up.
        """
        with self._lock:
            lookup = self._lookups.get(job.name) or self._begin(job)
            oldest_s = min(self._running.values(), default=0.0)
        if lookup is None or not lookup.done.wait(max(0.0, oldest_s + WAIT_S - time.monotonic())):
            return None
        with self._lock:
            if self._lookups.get(job.name) is lookup:
                del self._lookups[job.name]
        if lookup.error is not None:
            raise lookup.error
        assert lookup.traces is not None
        return lookup.traces

    def discard(self, name: str) -> None:
        """The Job may be created from now on: earlier answers, also those still to come, say nothing about it."""
        with self._lock:
            self._lookups.pop(name, None)

    def _begin(self, job: SubmittedJob) -> _Lookup | None:
        """Called with the lock held. None: as many are under way as there may be."""
        now = time.monotonic()
        old = [name for name, kept in self._lookups.items() if kept.done.is_set() and now - kept.began_s > KEEP_S]
        for name in old:
            del self._lookups[name]
        if len(self._running) >= AT_ONCE:
            return None
        self._number += 1
        lookup = self._lookups[job.name] = _Lookup(now)
        self._running[self._number] = now
        name = f"look-up-{self._number}"
        threading.Thread(target=self._run, args=(job, lookup, self._number), name=name, daemon=True).start()
        return lookup

    def _run(self, job: SubmittedJob, lookup: _Lookup, number: int) -> None:
        try:
            lookup.traces = self._read(job)
        except YardError as exc:
            lookup.error = exc
        finally:
            if lookup.traces is None and lookup.error is None:  # a defect: its traceback is this thread's
                lookup.error = Internal(f"The look-up of {job.name} ended by a defect.")
            with self._lock:
                del self._running[number]
            lookup.done.set()
