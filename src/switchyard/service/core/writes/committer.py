"""The committer: the one thread of a process that writes to the database, many queued writes in one transaction.

A transaction starts when the last one ends, or a moment later to collect more writes (`_await_more_writes`).

A large write (a part of a bulk submit or of a bulk cancel) gets its own transaction. Large writes alternate with
batches of other writes, so a single submit waits for at most one large write.

A write is acknowledged after its commit. A full queue answers Busy. A failed batch is replayed one write at a time, so
that a failing write does not harm the others. Exception: if the connection is lost, all writes get Unavailable. A
conflict is the result of one write, never an exception of the batch.

Order inside a batch: lock all jobs that will change (by id) → output → reports → calls → syncs → leases → free the
slots of concurrency groups → number the events → insert jobs → insert events → notify. Numbers come last because the
counter's row stays locked until the commit.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from switchyard.errors import Busy, Internal, Unavailable, YardError
from switchyard.log_pace import LogPace
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.service.core.writes.batch import Batch, CommitNotice
from switchyard.service.core.writes.event_watermark import EventWatermark
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Database, Tx
from switchyard.store.engine.new_rows import EventRow, NewJobRow
from switchyard.store.jobs import concurrency_groups, events, jobs
from switchyard.store.jobs.failed_attempts import failure_insert_many
from switchyard.store.jobs.failures import ConnectionLost, Contention, StatementTimeout
from switchyard.store.jobs.job_rows import DependencyRow

DEFERRED_BATCH_BYTES = 2**20  # output per transaction: small, so that it hardly delays a submit
DEFERRED_BYTES_MAX = 64 * 2**20  # output queued in memory; above: Busy, and the agent retries
# How long to wait until a batch is as large as the last batch: per write of the last batch, and at most.
LINGER_EACH_S = 0.0005
LINGER_S = 0.01
CALL_S_MAX = 30.0  # how long a caller waits for its commit

R = TypeVar("R")
log = structlog.get_logger()


class Write(Protocol):
    """A change that the committer applies in a transaction."""

    def job_ids(self) -> Iterable[str]:
        """Return the jobs to change. The committer locks the jobs of the whole batch first, in id order."""
        ...


@dataclass(frozen=True)
class BatchCall:
    """A rarely used change: any function of the batch. It runs in its own savepoint."""

    function: Callable[[Batch], Any]
    locks: Sequence[str] = ()

    def job_ids(self) -> Iterable[str]:
        return self.locks


Applier = Callable[[Batch, list[Any]], list[Any]]
Deliveries = list[tuple[Callable[[Any], None], Any]]  # callback and result
DeliverResults = Callable[[Deliveries], None]


@dataclass(slots=True)
class _Item:
    write: Any
    done: Callable[[Any], None] | None  # called by `deliver`, which chooses the thread
    future: Future[Any] | None
    size: int = 0  # in bytes, of a deferred write
    deliver: DeliverResults | None = None


class Committer:
    """The one writer thread of a process."""

    def __init__(
        self,
        database: Database,
        appliers: dict[type, Applier],
        *,
        now_us: Callable[[], int],
        queue_max: int,
        batch_max: int,
    ) -> None:
        self.name = secrets.token_hex(4)  # in notices: PostgreSQL sends them back to this server, too
        self.watermark = EventWatermark()
        self._database = database
        self._appliers = appliers
        self._now_us = now_us
        self._queue: deque[_Item] = deque()
        self._deferred: deque[_Item] = deque()
        self._deferred_bytes = 0
        self._large: TurnQueue[_Item] = TurnQueue()
        self._is_large_next = False  # true if the last transaction held no large write
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._wake = threading.Condition()
        self._last_batch_size = 0  # 0 if the last batch held one write
        self._wake_at = 1  # number of queued writes that wakes the thread
        self._is_closed = False
        self._fault_pace = LogPace()
        self._outage = Outage()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        # The server sets the callbacks below. After each commit, before the results are delivered:
        self.after_commit: Callable[[CommitNotice], None] = lambda _notice: None
        # Delivers the results of writes that name no other `deliver`:
        self.deliver: DeliverResults = _deliver_on_this_thread
        # If a write failed on an unreadable row. True: the cause is repaired, and the write is tried once more.
        self.mend: Callable[[Any], bool] = lambda _write: False
        # After each transaction, with the number of writes and the seconds:
        self.committed: Callable[[int, float], None] = lambda _writes, _seconds: None

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of queued writes."""
        return len(self._queue) + len(self._deferred) + len(self._large)

    def close(self, timeout_s: float = 5) -> None:
        """Commit the queued writes, then end the thread."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def put(self, write: Write, done: Callable[[Any], None], *, deliver: DeliverResults | None = None) -> None:
        """Queue a write. `deliver` (default: the server's) calls `done` with the result, or an exception as a value."""
        self._push(_Item(write, done, None, deliver=deliver))

    def put_large(self, write: Write, done: Callable[[Any], None], *, user: str) -> None:
        """Queue a write of many rows. Users take turns, and small writes go between two large writes."""
        self._push_large(user, _Item(write, done, None))

    def put_deferred(self, write: Write, done: Callable[[Any], None], *, size: int) -> None:
        """Queue a write of low priority. `size`: its bytes; each transaction takes a limited number of bytes."""
        with self._wake:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if self._deferred_bytes + size > DEFERRED_BYTES_MAX:
                raise Busy(f"{self._deferred_bytes} bytes of output are waiting for the database.")
            self._deferred.append(_Item(write, done, None, size))
            self._deferred_bytes += size
            self._wake.notify()

    def do(self, write: Write, timeout_s: float = CALL_S_MAX) -> Any:
        """Queue a write and wait for its commit."""
        future: Future[Any] = Future()
        self._push(_Item(write, None, future))
        return _result_of(future, timeout_s)

    def call(self, function: Callable[[Batch], R], *, locks: Sequence[str] = ()) -> R:
        """Run a function in the committer's thread, in a transaction, and return its result."""
        result: R = self.do(BatchCall(function, locks))
        return result

    def call_large(self, function: Callable[[Batch], R], *, locks: Sequence[str], user: str) -> R:
        """As `call`, for a change of many rows, in the queue of large writes. It is alone in its transaction."""
        future: Future[R] = Future()
        self._push_large(user, _Item(BatchCall(function, locks), None, future))
        return _result_of(future, CALL_S_MAX)

    def _push(self, item: _Item) -> None:
        with self._wake:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if len(self._queue) >= self._queue_max:
                raise Busy(f"{self._queue_max} changes are waiting for the database.")
            self._queue.append(item)
            if len(self._queue) >= self._wake_at:
                self._wake.notify()

    def _push_large(self, user: str, item: _Item) -> None:
        with self._wake:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if len(self._large) >= self._queue_max:
                raise Busy(f"{self._queue_max} large changes are waiting for the database.")
            self._large.append(user, item)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self.waiting and not self._is_closed:
                    self._wake.wait()
                if not self.waiting:
                    return
                items = self._take()
            results = self._commit(items)
            try:
                self._answer(items, results)
                self._database.tend()
            except YardError as exc:  # for example a full disk: the next batch may succeed
                if self._fault_pace.note(exc.inner):
                    log.warning("committer", error=exc.inner, next=exc.next_step)
            except Exception as exc:  # for example a closing event loop: the next batch may succeed
                log.error("committer", exc_info=exc)

    def _take(self) -> list[_Item]:
        """Return the writes of the next transaction: one large write, or a batch of others, in turns."""
        if self._large and (self._is_large_next or not (self._queue or self._deferred)):
            self._is_large_next = False
            return [self._large.popleft()]
        self._is_large_next = True
        self._await_more_writes()
        return [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))] + self._take_deferred()

    def _await_more_writes(self) -> None:
        """Wait up to LINGER_S for as many writes as the last batch had.

        Callers that get their results together send their next writes together. A transaction costs as much as some
        twenty writes in it, so one large batch is cheaper than several small ones.
        """
        if len(self._queue) < self._last_batch_size and not self._is_closed:
            self._wake_at = self._last_batch_size
            self._wake.wait_for(
                lambda: len(self._queue) >= self._wake_at or self._is_closed,
                min(self._last_batch_size * LINGER_EACH_S, LINGER_S),
            )
            self._wake_at = 1
        batch_size = min(len(self._queue), self._batch_max)
        self._last_batch_size = batch_size if batch_size > 1 else 0

    def _take_deferred(self) -> list[_Item]:
        """Return the first deferred write, and more up to DEFERRED_BATCH_BYTES."""
        items: list[_Item] = []
        taken_bytes = 0
        while self._deferred and (not items or taken_bytes + self._deferred[0].size <= DEFERRED_BATCH_BYTES):
            items.append(self._deferred.popleft())
            taken_bytes += items[-1].size
        self._deferred_bytes -= taken_bytes
        return items

    def _commit(self, items: list[_Item]) -> list[Any]:
        """Return the result of every write. A failed batch is replayed one write at a time."""
        attempt = partial(self._attempt, items, is_replay=False)
        try:
            return self._outage.retry_while_away(attempt, is_closed=lambda: self._is_closed)
        except (StatementTimeout, Contention) as exc:
            if isinstance(exc, StatementTimeout) and len(items) == 1:
                return [exc]
        except Unavailable as exc:
            # The connection is lost: a replay would wait for a timeout per write. The callers may retry.
            return [exc] * len(items)
        except Exception as exc:  # noqa: BLE001  a defect in one write must not fail the other writes
            if isinstance(exc, YardError) and len(items) == 1 and isinstance(items[0].write, BatchCall):
                return [exc]  # the call's own error, already rolled back
        return replay(items, self._commit_one)

    def _commit_one(self, item: _Item, *, is_first: bool = True) -> Any:
        try:
            return self._attempt([item], is_replay=True)[0]
        except YardError:
            raise
        except Exception as exc:  # noqa: BLE001  the committer's thread must survive every defect
            if is_first and isinstance(exc, UNREADABLE_ERRORS) and self.mend(item.write):
                return self._commit_one(item, is_first=False)
            error = Internal(f"The change failed: {type(exc).__name__}")
            error.__cause__ = exc
            return error

    def _attempt(self, items: list[_Item], *, is_replay: bool) -> list[Any]:
        results: dict[int, Any] = {}
        groups: dict[type, list[int]] = {}
        for index, item in enumerate(items):
            groups.setdefault(type(item.write), []).append(index)
        began = perf_counter()
        is_committing = False
        try:
            with self._database.write() as tx:
                batch = Batch(tx=tx, now_us=self._now_us(), is_replay=is_replay, writes=len(items))
                batch.rows = jobs.job_lock(tx, (job for item in items for job in item.write.job_ids()))
                for kind, apply in self._appliers.items():
                    indexes = groups.get(kind, [])
                    if indexes:
                        answers = apply(batch, [items[index].write for index in indexes])
                        results.update(zip(indexes, answers, strict=True))
                for group in sorted(batch.freed):
                    batch.clusters |= concurrency_groups.concurrency_group_release(tx, group, batch.freed[group])
                notice = batch.notice()
                is_news = bool(notice.clusters or notice.jobs or notice.versions)
                sent = msgspec.structs.replace(notice, sender=self.name)
                text = msgspec.json.encode(sent).decode() if is_news else ""
                if batch.failures:
                    failure_insert_many(tx, batch.failures)
                first = insert_numbered(tx, batch.inserts, batch.events, dependencies=batch.after, notice=text)
                is_committing = True
        except ConnectionLost as exc:
            exc.is_in_doubt = is_committing
            raise
        if first:
            self.watermark.note_commit(first, first + len(batch.inserts) + len(batch.events) - 1)
        self.committed(len(items), perf_counter() - began)
        self._publish(batch, notice)
        return [results[index] for index in range(len(items))]

    def _publish(self, batch: Batch, notice: CommitNotice) -> None:
        """Announce a commit. Errors are only logged: the change is durable, and a replay would apply it twice."""
        try:
            for callback in batch.settled:
                callback()
            self.after_commit(notice)
        except Exception as exc:  # periodic refreshes find the change later
            log.error("after a commit", exc_info=exc)

    def _answer(self, items: list[_Item], results: list[Any]) -> None:
        """Deliver the results to callbacks and futures."""
        deliveries_by: dict[DeliverResults, Deliveries] = {}
        for item, result in zip(items, results, strict=True):
            if item.done is not None:
                deliveries_by.setdefault(item.deliver or self.deliver, []).append((item.done, result))
            elif item.future is not None and not item.future.cancelled():
                if isinstance(result, BaseException):
                    item.future.set_exception(result)
                else:
                    item.future.set_result(result)
        for deliver, deliveries in deliveries_by.items():
            try:
                deliver(deliveries)
            except Exception as exc:  # for example a closing event loop: go on with the others
                log.error("committer", exc_info=exc)


def apply_calls(batch: Batch, calls: list[BatchCall]) -> list[Any]:
    """Run each call in its own savepoint. An error undoes the call's writes and is the call's result.

    A single call needs no savepoint: its error undoes the whole transaction.
    """
    results: list[Any] = []
    for call in calls:
        try:
            with nullcontext() if batch.writes == 1 else batch.savepoint():
                results.append(call.function(batch))
        except YardError as exc:
            if batch.writes == 1 or isinstance(exc, Unavailable):
                raise
            results.append(exc)
    return results


def _result_of(future: Future[R], timeout_s: float) -> R:
    try:
        return future.result(timeout_s)
    except TimeoutError as exc:
        raise Unavailable("The database is too slow; the change may still happen.") from exc


def _deliver_on_this_thread(deliveries: Deliveries) -> None:
    for done, result in deliveries:
        done(result)


def insert_numbered(
    tx: Tx, new_jobs: list[NewJobRow], new_events: list[EventRow], *, dependencies: list[DependencyRow], notice: str
) -> int:
    """Insert jobs, dependencies and events. Call this last: the counter's row stays locked until the commit.
    Returns the first number that was taken; 0: none was.

    `notice` is sent to the other servers with the commit; empty: none. It goes with the statement that takes the
    numbers: a statement of its own took a third of the time of a single submit in PostgreSQL.
    """
    count = len(new_jobs) + len(new_events)
    if not count:
        if notice:
            dialect.notify(tx, notice)
        return 0
    first = events.counter_take(tx, "events", count, notice=notice)
    jobs.job_insert_many(tx, new_jobs, first_seq=first)
    jobs.dependency_insert(tx, dependencies)
    events.event_insert_many(tx, new_events, first_seq=first + len(new_jobs))
    return first


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


CONFLICTS_MAX = 10  # tries of a write after deadlocks and serialization failures (PostgreSQL's 40P01 and 40001)
TIMEOUTS_MAX = 2  # lock timeouts before the remaining writes are refused: a timeout takes seconds

W = TypeVar("W")


def replay(writes: Iterable[W], commit: Callable[[W], Any]) -> list[Any]:
    """Return the result of each write; errors are values.

    After one lock timeout the others are still tried: they may need other locks. After TIMEOUTS_MAX the remaining
    writes are refused: they probably need the same lock, and would delay all queued writes.
    """
    results: list[Any] = []
    timeouts = 0
    for write in writes:
        result = StatementTimeout() if timeouts >= TIMEOUTS_MAX else _replay_one(write, commit)
        timeouts += isinstance(result, StatementTimeout)
        results.append(result)
    return results


def _replay_one(write: W, commit: Callable[[W], Any]) -> Any:
    result: Any = None
    for _ in range(CONFLICTS_MAX):
        try:
            return commit(write)
        except Contention as exc:
            result = exc
        except YardError as exc:
            return exc
    return result


WAIT_S = 5.0  # a restart of PostgreSQL takes less
AGAIN_S = 0.05  # between two tries


class Outage:
    """Remembers when the database became unreachable. Only the committer's thread uses it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def retry_while_away(self, commit: Callable[[], R], *, is_closed: Callable[[], bool]) -> R:
        """Commit, retrying while the database is unreachable. Raises ConnectionLost after WAIT_S.

        A connection lost before the commit changed nothing, so a retry is safe. If the connection is lost during the
        commit, the outcome is in doubt, and this raises at once. After WAIT_S every batch fails at its first try,
        until a batch succeeds.
        """
        while True:
            began = monotonic()
            try:
                result = commit()
            except ConnectionLost as exc:
                self._since = began if self._since is None else self._since
                if exc.is_in_doubt or is_closed() or monotonic() - self._since >= WAIT_S:
                    raise
                sleep(AGAIN_S)
            except BaseException:
                self._since = None
                raise
            else:
                self._since = None
                return result
