"""How often a server looks for unused uploads of a user. One look reads the lists of all trees of that user."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from switchyard.errors import Busy

PAUSE_FACTOR = 20  # a pause is so many times as long as the look before it
PAUSE_US_MAX = 60_000_000


class ReleasePace:
    """One look of a user at a time, and a pause after it. In memory: each server counts its own. Safe on threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking: set[str] = set()
        self._pause_end_us: dict[str, int] = {}

    @contextmanager
    def look(self, owner: str, steady_us: Callable[[], int]) -> Iterator[None]:
        """Raises Busy while another look of this user goes on, and in the pause after it."""
        began_us = steady_us()
        with self._lock:
            self._pause_end_us = {user: end_us for user, end_us in self._pause_end_us.items() if end_us > began_us}
            if owner in self._looking or owner in self._pause_end_us:
                raise Busy(
                    "The server has just looked for unused uploads of this user.",
                    next_step=f"Ask again in a few seconds, at most {PAUSE_US_MAX // 1_000_000}.",
                )
            self._looking.add(owner)
        try:
            yield
        finally:
            ended_us = steady_us()
            with self._lock:
                self._looking.discard(owner)
                self._pause_end_us[owner] = ended_us + min(PAUSE_US_MAX, PAUSE_FACTOR * (ended_us - began_us))
