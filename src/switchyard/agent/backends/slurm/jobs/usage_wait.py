"""Delays the end of a job for a moment, until accounting has its usage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from switchyard.agent.backends.slurm.commands.accounting import Accounting
from switchyard.agent.backends.slurm.commands.states import SlurmJobFacts

USAGE_S_MAX = 5.0  # the longest delay of an end


class UsageWait:
    """Used by one thread."""

    def __init__(
        self, accounting: Accounting, *, has_accounts: Callable[[], bool], sample_s: Callable[[], int]
    ) -> None:
        self._accounting = accounting
        self._has_accounts = has_accounts
        self._sample_s = sample_s
        self._since: dict[str, float] = {}  # ended jobs whose usage is asked for → since when

    def complete(self, rows: Mapping[str, SlurmJobFacts]) -> dict[str, SlurmJobFacts]:
        """Return the ends of `rows` that change: with their usage, or COMPLETING while that may still come."""
        now = time.monotonic()
        ended = [handle for handle, facts in rows.items() if facts.is_over and self._is_sampled(facts)]
        self._since = {handle: self._since.get(handle, now) for handle in ended}
        waiting = {handle for handle in ended if now - self._since[handle] < USAGE_S_MAX}
        asked = [handle for handle in waiting if self._accounting.end_of(handle) is None]
        if asked:
            self._accounting.ask(asked)
        completed: dict[str, SlurmJobFacts] = {}
        for handle in ended:
            row, accounted = rows[handle], self._accounting.end_of(handle)
            if accounted is not None:
                # squeue does not say who cancelled a job.
                reason = accounted.reason if row.state == "CANCELLED" else row.reason
                completed[handle] = replace(row, memory_bytes_max=accounted.memory_bytes_max, reason=reason)
            elif handle in waiting:
                completed[handle] = replace(row, state="COMPLETING")
        return completed

    def _is_sampled(self, facts: SlurmJobFacts) -> bool:
        """Whether the job ran long enough for Slurm to measure its memory."""
        return self._has_accounts() and (facts.elapsed_s or 0) > self._sample_s()
