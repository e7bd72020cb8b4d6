"""Holds staged tasks of an array back for a moment, so that neighbours are submitted together. No I/O."""

from __future__ import annotations

import time

HOLD_S = 2.0  # a submission of many tasks costs a batch system little more than that of one


class SiblingTasks:
    """Used by one thread. Within HOLD_S all tasks that are staged wait for those that are not."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # a job with tasks that are being staged → when its next tasks were held
        self._waiting_jobs: set[str] = set()

    def begin_round(self, staging: set[str]) -> None:
        """`staging`: the jobs of which tasks are being staged now. Their staged tasks go on every HOLD_S."""
        now = time.monotonic()
        self._since = {job: self._since.get(job, now) for job in staging}
        due = {job for job, since in self._since.items() if now - since > HOLD_S}
        self._since |= dict.fromkeys(due, now)
        self._waiting_jobs = staging - due

    def is_held(self, job: str) -> bool:
        return job in self._waiting_jobs
