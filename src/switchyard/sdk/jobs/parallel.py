"""Runs one function over many items on a few threads. It knows nothing of the items."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from switchyard.errors import YardError

T = TypeVar("T")


def run_parallel(items: Iterable[T], work: Callable[[T], None], *, threads: int) -> None:
    """Call `work` with each item. The first error stops the other threads and is raised.

    The threads are daemons: after Ctrl-C the program ends without waiting for an answer of the network.
    """
    crew = _Crew(iter(items), work)
    started = [threading.Thread(target=crew.run, name=f"files-{number}", daemon=True) for number in range(threads)]
    try:
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    finally:
        crew.stop.set()
    if crew.errors:
        raise crew.errors[0]
    if crew.unfinished:
        raise RuntimeError("a thread ended before its work was done; its error is printed above")


class _Crew(Generic[T]):
    """The threads of one call, and the items that are left."""

    def __init__(self, items: Iterator[T], work: Callable[[T], None]) -> None:
        self._items = items
        self._work = work
        self._lock = threading.Lock()
        self.stop = threading.Event()
        self.errors: list[Exception] = []
        self.unfinished = 0  # items that were begun and have no end

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                with self._lock:
                    try:
                        item = next(self._items)
                    except StopIteration:
                        return
                    self.unfinished += 1
                self._work(item)
                with self._lock:
                    self.unfinished -= 1
        except (YardError, OSError, ValueError) as exc:
            self.errors.append(exc)
            self.stop.set()
