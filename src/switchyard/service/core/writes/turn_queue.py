"""The queue of large writes. Users take turns, one write per turn, however many writes a user has queued."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """One queue per user. Not thread-safe: the committer's lock guards it."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()  # the user whose turn is next comes first

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def append(self, user: str, item: T) -> None:
        self._queues.setdefault(user, deque()).append(item)

    def popleft(self) -> T:
        """Remove and return the oldest item of the user whose turn it is. That user then goes last."""
        user, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        if queue:
            self._queues.move_to_end(user)
        else:
            del self._queues[user]
        return item
