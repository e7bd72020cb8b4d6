"""When the agent of `yard loop` leaves: there was no job for it for a while, it got a signal, or its time is over.

First it asks for no new work. Attempts that have not begun are returned to the server. Running ones may end by
themselves for a while; then they are ended and reported as lost, so `on_lost` of each job decides. The agent leaves
when all is reported. If a job comes in while an idle agent is leaving, the agent stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

IDLE_S = 30.0  # a job that was submitted after another one ended still finds the loop
GRACE_S = 20.0  # Slurm kills a job 30 s after SIGTERM
REPORT_S = 8.0  # after the grace, for the ends to be reported: then the agent leaves without
TIME_SHARE = 0.2  # of a short life, the time before its end in which no new job is taken is at most this part
UPLOADS_S_MAX = 600.0  # output files hold an idle agent up for so long; a later process goes on with them


class Departure:
    """`left_s`: seconds until the allocation around the agent ends. Called from several threads."""

    def __init__(
        self, *, idle_s: float = IDLE_S, grace_s: float = GRACE_S, left_s: Callable[[], float] = lambda: float("inf")
    ) -> None:
        self._idle_s, self._grace_s, self._left_s = idle_s, grace_s, left_s
        self._margin_s = min(grace_s + REPORT_S, TIME_SHARE * left_s())
        self._lock = threading.Lock()
        self._idle_since = time.monotonic()
        self._is_begun = False
        self._reason = ""  # why it must leave; empty: it may stay if a job comes in
        self._end_at = float("inf")  # of the grace

    @property
    def is_begun(self) -> bool:
        """Whether the agent asks for no new work."""
        return self._is_begun

    @property
    def return_reason(self) -> str:
        """Why attempts that have not begun are returned; empty: they start."""
        return self._reason

    @property
    def end_reason(self) -> str:
        """Why running attempts are ended now; empty: they run on."""
        return self._reason if time.monotonic() >= self._end_at else ""

    @property
    def is_overdue(self) -> bool:
        """Whether the agent leaves although something is not reported."""
        return time.monotonic() >= self._end_at + REPORT_S

    def order(self, reason: str) -> None:
        """Leave, whatever comes in. A second order ends the grace."""
        with self._lock:
            now = time.monotonic()
            time_s = max(0.0, self._left_s() - min(REPORT_S, self._margin_s / 2))
            self._end_at = now if self._reason else now + min(self._grace_s, time_s)
            self._is_begun, self._reason = True, self._reason or reason

    def observe(self, *, has_work: bool, is_sending: bool) -> bool:
        """Begin to leave if it is time, and stay if a job came in. Returns whether that changed."""
        if not self._reason and self._left_s() < self._margin_s:
            self.order("the allocation around the loop ends")
            return True
        now = time.monotonic()
        with self._lock:
            if self._reason:
                return False
            if has_work:
                self._idle_since = now
            idle_s = now - self._idle_since
            is_begun = idle_s >= self._idle_s and not (is_sending and idle_s < UPLOADS_S_MAX)
            was_begun, self._is_begun = self._is_begun, is_begun
            return is_begun != was_begun
