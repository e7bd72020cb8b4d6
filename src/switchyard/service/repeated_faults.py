"""Say the same fault once, then once a minute while it lasts: a full disk must not fill the log as well."""

from __future__ import annotations

import time

AGAIN_S = 60.0


class RepeatedFaults:
    """Remembers the last fault of each part of a process. Used by one thread or loop per part."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}  # part → its last fault, and when it was said

    def is_new(self, part: str, fault: str) -> bool:
        """Whether to say this fault now."""
        now = time.monotonic()
        before, at = self._said.get(part, ("", 0.0))
        if fault == before and now - at < AGAIN_S:
            return False
        self._said[part] = (fault, now)
        return True

    def is_over(self, part: str) -> bool:
        """The part works: whether it had a fault before, which is now forgotten."""
        return self._said.pop(part, None) is not None
