"""What the runner remembers of one live attempt beside the journal. A restart loses it, which is harmless."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

QUEUED_AFTER_S = 0.5  # an attempt that is queued for less is not reported as SUBMITTED
REPORT_EVERY_S = 10.0  # between two reported reasons of one attempt


@dataclass(slots=True)
class AttemptRecord:
    """Changed by the runner's thread alone."""

    # The backend may have it: it is looked up before a submit. Of every intent of an earlier incarnation.
    is_maybe_submitted: bool = False
    native_id: str | None = field(default=None, init=False)  # submitted, and not yet written down as such
    queued_at: float | None = field(default=None, init=False)  # submitted, or first reported as waiting
    retry_at: float = field(default=0.0, init=False)  # earliest next submit
    cancelled_at: float | None = field(default=None, init=False)  # the backend was last asked to cancel it
    unknown_text: str | None = field(default=None, init=False)  # the unknown native state that was logged
    _reason: str | None = field(default=None, init=False)  # the one that was reported last
    _reason_at: float = field(default=0.0, init=False)

    def is_reason_due(self, reason: str) -> bool:
        """Report the first reason of a queued attempt, then a new one every 10 s: schedulers change it often."""
        if self._reason is None:
            return time.monotonic() - (self.queued_at or 0.0) > QUEUED_AFTER_S
        return self._has_changed(reason)

    def is_note_due(self, note: str | None) -> bool:
        """Report the note of a running attempt when it changes, also when it goes away."""
        return note is not None and (self._reason is None or self._has_changed(note))

    def note_reported(self, reason: str) -> None:
        self._reason, self._reason_at = reason, time.monotonic()

    def _has_changed(self, reason: str) -> bool:
        return reason != self._reason and time.monotonic() - self._reason_at > REPORT_EVERY_S
