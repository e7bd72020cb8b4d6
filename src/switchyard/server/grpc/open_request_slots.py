"""Slots for requests that stay open: so many in total, and fewer for one user or address, so that others find one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from time import monotonic

from switchyard.errors import Busy

# Refused requests are asked to come again one after the other, at this pace. If thousands came again each second, the
# server would have no time for other requests.
RETRIES_PER_S = 50
RETRY_S_MAX = 15  # longer, and a client whose calls may take 30 s would give up


class OpenRequestSlots:
    """Used on the server's event loop alone. `noun`: what is open, in the plural. `kind`: of those who hold slots."""

    def __init__(
        self,
        slots: int,
        owner_slots: int,
        noun: str,
        *,
        kind: str = "user",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._slots = slots
        self._owner_slots = owner_slots
        self._noun = noun
        self._kind = kind
        self._clock = clock
        self._last_retry_at = 0.0  # when the last refused request comes again
        self._by_owner: dict[str, int] = {}
        self.total = 0

    def of(self, owner: str) -> int:
        return self._by_owner.get(owner, 0)

    @contextmanager
    def hold(self, owner: str) -> Iterator[None]:
        """Hold a slot while the block runs; 429 if none is free."""
        used = self.of(owner)
        if used >= self._owner_slots:
            who = "You have" if self._kind == "user" else f"Your {self._kind} has"
            raise self._busy(
                f"{who} {used} {self._noun} open here; at most {self._owner_slots} are for one {self._kind}."
            )
        if self.total >= self._slots:
            raise self._busy(f"{self.total} {self._noun} are open here.")
        self.total += 1
        self._by_owner[owner] = used + 1
        try:
            yield
        finally:
            self.total -= 1
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def _busy(self, text: str) -> Busy:
        now = self._clock()
        self._last_retry_at = min(max(now, self._last_retry_at) + 1 / RETRIES_PER_S, now + RETRY_S_MAX)
        error = Busy(text)
        error.retry_after_s = max(1, ceil(self._last_retry_at - now))
        return error
