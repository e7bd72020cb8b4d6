"""Slots for requests that stay open: so many in total, and fewer for one user, so that others find one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switchyard.errors import Busy


class OpenRequestSlots:
    """Used on the server's event loop alone. `noun`: what is open, in the plural."""

    def __init__(self, slots: int, user_slots: int, noun: str) -> None:
        self._slots = slots
        self._user_slots = user_slots
        self._noun = noun
        self._by_user: dict[str, int] = {}
        self.total = 0

    def of(self, user: str) -> int:
        return self._by_user.get(user, 0)

    @contextmanager
    def hold(self, user: str) -> Iterator[None]:
        """Hold a slot while the block runs; 429 if none is free."""
        used = self.of(user)
        if used >= self._user_slots:
            raise Busy(f"You have {used} {self._noun} open here; at most {self._user_slots} are for one user.")
        if self.total >= self._slots:
            raise Busy(f"{self.total} {self._noun} are open here.")
        self.total += 1
        self._by_user[user] = used + 1
        try:
            yield
        finally:
            self.total -= 1
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]
