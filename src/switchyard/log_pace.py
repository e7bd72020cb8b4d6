"""When to log an event that repeats: at once when its text changes, then at most once a minute, with a count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LINE_EVERY_S = 60.0


class LogPace:
    """The pace of one event. Used from any thread."""

    def __init__(self, every_s: float = LINE_EVERY_S, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()
        self._text: str | None = None
        self._logged_at = 0.0
        self._times = 0

    def note(self, text: str) -> int:
        """Count an event. Returns how many events the line stands for that is due now; 0: no line is due."""
        with self._lock:
            now = self._clock()
            self._times += 1
            if text == self._text and now - self._logged_at < self._every_s:
                return 0
            times, self._times = self._times, 0
            self._text, self._logged_at = text, now
            return times

    def end(self) -> bool:
        """The cause is gone: the next event is logged at once. Returns whether there was one."""
        if self._text is None:  # without the lock: callers end it after every success
            return False
        with self._lock:
            self._text, self._times = None, 0
            return True
