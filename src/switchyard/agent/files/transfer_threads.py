"""A bounded number of threads for transfers, each with a connection of its own. All are daemons."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

from switchyard.agent.files.object_client import ObjectStoreCalls
from switchyard.errors import Internal, Unavailable, YardError

Transfer = Callable[[ObjectStoreCalls], None]
END_S = 5.0  # for transfers to end with the agent
AHEAD = 2  # transfers that a caller may hand over beyond those that run: their data are in memory


class TransferThreads:
    """Runs transfers of all attempts. A transfer must not wait for another one that has not begun."""

    def __init__(self, name: str, count: int, connect: Callable[[], ObjectStoreCalls]) -> None:
        self._tasks: queue.SimpleQueue[Callable[[ObjectStoreCalls], None] | None] = queue.SimpleQueue()
        self._count = count
        self._calls = [connect() for _ in range(count)]
        self._is_stopped = threading.Event()
        self._name = name
        for calls in self._calls:
            self._start(calls)

    def run(self, transfers: Iterable[Transfer]) -> None:
        """Run all transfers, several at once, and raise the first error. `transfers` is read as there is room."""
        group = _Group(self._count + AHEAD)
        try:
            for transfer in transfers:
                if not group.begin(self._is_stopped):
                    break
                self._tasks.put(group.bound(transfer))
        finally:
            group.wait(self._is_stopped)  # also after an error: the caller then closes files that transfers use
        group.check()
        if self._is_stopped.is_set():
            raise Unavailable("The agent ends.")

    def stop(self) -> None:
        self._is_stopped.set()
        for calls in self._calls:
            calls.close()
            self._tasks.put(None)

    def _start(self, calls: ObjectStoreCalls) -> None:
        threading.Thread(target=self._work, args=(calls,), name=self._name, daemon=True).start()

    def _work(self, calls: ObjectStoreCalls) -> None:
        is_defect = True
        try:
            while (task := self._tasks.get()) is not None:
                task(calls)
            is_defect = False
        finally:
            if is_defect:
                self._start(calls)  # the traceback goes to stderr, and another thread takes the place of this one


class _Group:
    """The transfers of one call of `run`."""

    def __init__(self, running_max: int) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._running_max = running_max
        self._error: BaseException | None = None

    def begin(self, is_stopped: threading.Event) -> bool:
        """Wait for room. False: a transfer failed, so no more are begun."""
        with self._changed:
            while self._running >= self._running_max and self._error is None and not is_stopped.is_set():
                self._changed.wait(1.0)
            self._running += 1 if self._error is None else 0
            return self._error is None and not is_stopped.is_set()

    def bound(self, transfer: Transfer) -> Transfer:
        def run(calls: ObjectStoreCalls) -> None:
            error: BaseException | None = Internal("A transfer ended by a defect; the agent's log has it.")
            try:
                if self._error is None:
                    transfer(calls)
                error = None
            except (YardError, OSError, ValueError) as exc:
                error = exc
            finally:
                with self._changed:
                    self._running -= 1
                    self._error = self._error or error
                    self._changed.notify_all()

        return run

    def wait(self, is_stopped: threading.Event) -> None:
        with self._changed:
            while self._running and not is_stopped.is_set():
                self._changed.wait(1.0)
            if self._running:
                self._changed.wait_for(lambda: not self._running, END_S)

    def check(self) -> None:
        if self._error is not None:
            raise self._error
