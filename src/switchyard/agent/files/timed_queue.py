"""A queue of tasks with the moment at which each is due, for a fixed number of daemon threads."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

Task = Callable[[], None]


class TimedQueue:
    """A task that raises ends its thread; its traceback goes to stderr, and another thread takes its place."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._started = 0
        self._is_stopped = False

    def put(self, task: Task, *, after_s: float = 0.0) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + after_s, next(self._numbers), task))
            if self._started < self._count and not self._is_stopped:  # no threads where no job has files
                self._started += 1
                self._start_thread()
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        is_defect = True
        try:
            while (task := self._next()) is not None:
                task()
            is_defect = False
        finally:
            if is_defect:
                self._start_thread()

    def _next(self) -> Task | None:
        with self._changed:
            while not self._is_stopped:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_s)
            return None
