"""The last reason that was reported of each live attempt, and whether another one is to be reported."""

from __future__ import annotations

import time

from switchyard.agent.journal.attempt import AttemptKey

QUEUED_AFTER_S = 0.5  # an attempt that is queued for less is not reported as SUBMITTED
REPORT_EVERY_S = 10.0  # between two reported reasons of one attempt


class ReportedReasons:
    """Kept in memory: after a restart, the reasons of all attempts are reported again, which is harmless."""

    def __init__(self) -> None:
        self._reported: dict[AttemptKey, tuple[str, float]] = {}

    def is_due(self, key: AttemptKey, reason: str, *, queued_s: float) -> bool:
        """Report the first reason of a queued attempt, then a new one at most every 10 s: schedulers change it often.

        `queued_s`: for how long the attempt is queued.
        """
        return self._has_changed(key, reason) if key in self._reported else queued_s > QUEUED_AFTER_S

    def is_note_due(self, key: AttemptKey, note: str | None) -> bool:
        """Report the note of a running attempt when it changes, also when it goes away."""
        return note is not None and (key not in self._reported or self._has_changed(key, note))

    def record(self, key: AttemptKey, reason: str) -> None:
        self._reported[key] = (reason, time.monotonic())

    def forget(self, key: AttemptKey) -> None:
        self._reported.pop(key, None)

    def _has_changed(self, key: AttemptKey, reason: str) -> bool:
        reported, at = self._reported[key]
        return reason != reported and time.monotonic() - at > REPORT_EVERY_S
