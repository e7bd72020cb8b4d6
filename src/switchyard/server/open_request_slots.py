"""Places for requests that users keep open: so many in all, and so many of one user, so that others find one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switchyard.errors import Busy


class OpenRequestSlots:
    """Used on the server's loop alone."""

    def __init__(self, most: int, user_most: int, what: str) -> None:
        self._most = most
        self._user_most = user_most
        self._what = what
        self._by_user: dict[str, int] = {}
        self._taken = 0

    @contextmanager
    def taken(self, user: str) -> Iterator[None]:
        """Have a place as long as the block runs; 429 if there is none."""
        own = self._by_user.get(user, 0)
        if own >= self._user_most:
            raise Busy(f"You have {own} {self._what} open here; at most {self._user_most} are for one user.")
        if self._taken >= self._most:
            raise Busy(f"{self._taken} {self._what} are open here.")
        self._taken += 1
        self._by_user[user] = own + 1
        try:
            yield
        finally:
            self._taken -= 1
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]
