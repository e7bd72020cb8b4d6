"""Looks up whether Jobs were created, beside the caller's thread (`background_calls.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from switchyard.agent.backends.kubernetes.api.background_calls import BackgroundCalls
from switchyard.agent.backends.kubernetes.jobs.submitted_job import SubmittedJob
from switchyard.agent.backends.kubernetes.namespaces.objects import JobObject

AT_ONCE = 8
KEEP_S = 60.0  # the next caller looks up again


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTraces:
    """What a look-up found: the Job, or that it was there (pods, events), or nothing."""

    began_s: float  # by the monotonic clock
    job: JobObject | None = None
    is_vanished: bool = False


class JobLookups:
    """Used by several threads. Look-ups only read: what follows from an answer is the caller's."""

    def __init__(self, read: Callable[[SubmittedJob], JobTraces]) -> None:
        self._read = read
        self._calls = BackgroundCalls[JobTraces]("look-up", at_once=AT_ONCE, keep_s=KEEP_S)

    def get(self, job: SubmittedJob) -> JobTraces | None:
        """What a look-up shows that began after the last `discard`; None: the API has not answered yet.

        Raises the error of the look-up.
        """
        self._calls.begin(job.name, lambda: self._read(job))
        return self._calls.take(job.name)

    def discard(self, name: str) -> None:
        """The Job may be created from now on: earlier answers, also those still to come, say nothing about it."""
        self._calls.discard(name)
