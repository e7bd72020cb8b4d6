"""One committer per process: whatever waits goes into one transaction as soon as the last one returned, or a moment
later if that one held several (`Committer._linger`).

A large write (a piece of a bulk submit) gets a transaction of its own, and between two of them goes a batch of the
others: a single submit waits for at most one large write, however many wait.

Acknowledged after the commit. A full queue answers Busy. A batch that fails is replayed one Write at a time, so one
waiter's failure never harms another's. A conflict is a Write's result, never an exception of the batch.

Order inside a batch: lock all jobs it will change (by id) → output → reports → calls → syncs → leases → let jobs go
that waited for others of their crowd → number the events → insert jobs → insert events → notify. Numbers come last
because their row stays locked until the commit.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from switchyard.errors import Busy, Internal, Unavailable, YardError
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.service.numbering import insert_numbered
from switchyard.service.outage import Outage
from switchyard.service.repeated_faults import RepeatedFaults
from switchyard.service.replay import replay
from switchyard.service.turn_queue import TurnQueue
from switchyard.store import concurrency_groups, dialect, jobs
from switchyard.store.database import Database, Tx
from switchyard.store.failures import ConnectionLost, Contention, StatementTimeout

# What can wait (output) goes in beside what cannot: so little per transaction that a submit hardly notices.
DEFERRED_BATCH_BYTES = 2**20
DEFERRED_BYTES_MAX = 64 * 2**20  # waiting in memory; above: Busy, and whoever sent it tries again
# How long a batch waits to be as large as the one before: for each write in that, and at most. Alone, none waits.
LINGER_EACH_S = 0.0005
LINGER_S = 0.01

R = TypeVar("R")
log = structlog.get_logger()


class CommitNotice(msgspec.Struct, frozen=True):
    """What a commit changed that somebody may wait for. Also the payload between replicas."""

    clusters: list[str] = []
    jobs: list[str] = []
    versions: list[str] = []


@dataclass
class Batch:
    """One transaction in the making."""

    tx: Tx
    now_us: int
    is_replay: bool = False
    writes: int = 1  # that are in it
    events: list[dict[str, Any]] = field(default_factory=list)
    inserts: list[dict[str, Any]] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)  # dependencies of the inserted jobs
    rows: dict[str, Any] = field(default_factory=dict)  # jobs locked by this batch, as they were
    clusters: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    # crowds (store/concurrency_groups.py) in which so many jobs ended
    freed: Counter[str] = field(default_factory=Counter)
    asked: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # shapes put to clusters (inquiries.py)
    settled: list[Callable[[], None]] = field(default_factory=list)  # called once it is durable

    def event(
        self,
        job_id: str,
        kind: str,
        *,
        state: str,
        attempt: int,
        fence: int,
        cluster_id: str | None,
        reason: str = "",
        at_us: int | None = None,
    ) -> None:
        self.events.append(
            {
                "at_us": self.now_us if at_us is None else at_us,
                "job_id": job_id,
                "kind": kind,
                "state": state,
                "attempt": attempt,
                "fence": fence,
                "cluster_id": cluster_id,
                "reason": reason[:2000],
            }
        )
        self.jobs.add(job_id)

    def free(self, row: Any, count: int = 1) -> None:
        """A job that counted in its crowd, or had places of its queue or tokens, does so no more: others may go."""
        if count <= 0:
            return
        if row.places is not None:
            self.versions.add("queues")
        if row.tokens is not None:
            self.versions.add("pending")  # the leader gives its tokens back, and others may wait for them
        if row.crowd is not None and (row.agent_id is not None or row.array is not None):
            self.freed[row.crowd] += count

    def woken(self) -> CommitNotice:
        return CommitNotice(sorted(self.clusters), sorted(self.jobs), sorted(self.versions))


class Write(Protocol):
    """A change that waits for its transaction."""

    def job_ids(self) -> Iterable[str]:
        """Jobs it will change: they are locked first, in id order, for the whole batch."""
        ...


@dataclass(frozen=True)
class BatchCall:
    """A cold use case: any function of the batch, inside a savepoint of its own."""

    function: Callable[[Batch], Any]
    locks: Sequence[str] = ()

    def job_ids(self) -> Iterable[str]:
        return self.locks


Applier = Callable[[Batch, list[Any]], list[Any]]
Deliveries = list[tuple[Callable[[Any], None], Any]]  # who is told, and what
DeliverResults = Callable[[Deliveries], None]


@dataclass(slots=True)
class _Item:
    write: Any
    done: Callable[[Any], None] | None  # told by `deliver`, on whatever thread that chooses
    future: Future[Any] | None
    size: int = 0  # in bytes, of what can wait
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
        left_out: dict[type, Callable[[Any], Any]] | None = None,
    ) -> None:
        self._database = database
        self._appliers = appliers
        self._now_us = now_us
        self._queue: deque[_Item] = deque()
        self._later: deque[_Item] = deque()
        self._later_bytes = 0
        self._large: TurnQueue[_Item] = TurnQueue()
        self._is_large_next = False  # the last transaction held no large write
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._left_out = left_out or {}  # for the benchmark alone: writes answered without the database
        self._wake = threading.Condition()
        self._told = 0  # how many writes the batch before had, if several
        self._awaited = 1  # the thread is woken when so many wait
        self._is_closed = False
        self._faults = RepeatedFaults()
        self._outage = Outage()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        # Set by the server: told after each commit, before the waiters are; and who tells them.
        self.after_commit: Callable[[CommitNotice], None] = lambda _woken: None
        self.deliver: DeliverResults = _deliver_on_this_thread
        # Asked when a write failed to read what is stored: whether the cause is out of the way now.
        self.mend: Callable[[Any], bool] = lambda _write: False
        # And after each transaction: how many writes were in it, and how many seconds it took.
        self.committed: Callable[[int, float], None] = lambda _writes, _seconds: None

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Writes in the queue."""
        return len(self._queue) + len(self._later) + len(self._large)

    def close(self, timeout_s: float = 5) -> None:
        """Commit what is queued, then end."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def put(self, write: Write, done: Callable[[Any], None], *, deliver: DeliverResults | None = None) -> None:
        """Queue a write; `done` gets its result, or an exception as a value. `deliver`: by whom, if not by the server's
        own loop; told once for all of a batch."""
        self._push(_Item(write, done, None, deliver=deliver))

    def put_large(self, write: Write, done: Callable[[Any], None], *, user: str) -> None:
        """Queue a write of many rows. Users take turns, and others' small writes go between two large ones."""
        with self._wake:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if len(self._large) >= self._queue_max:
                raise Busy(f"{self._queue_max} large changes are waiting for the database.")
            self._large.append(user, _Item(write, done, None))
            self._wake.notify()

    def put_later(self, write: Write, done: Callable[[Any], None], *, size: int) -> None:
        """Queue a write that lets others go first. `size`: its bytes, of which only some go into one transaction."""
        with self._wake:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if self._later_bytes + size > DEFERRED_BYTES_MAX:
                raise Busy(f"{self._later_bytes} bytes of output are waiting for the database.")
            self._later.append(_Item(write, done, None, size))
            self._later_bytes += size
            self._wake.notify()

    def do(self, write: Write, timeout_s: float = 30) -> Any:
        """Queue a write and wait for its commit."""
        future: Future[Any] = Future()
        self._push(_Item(write, None, future))
        try:
            return future.result(timeout_s)
        except TimeoutError as exc:
            raise Unavailable("The database is too slow; the change may still happen.") from exc

    def call(self, function: Callable[[Batch], R], *, locks: Sequence[str] = ()) -> R:
        """Run a cold use case in the writer."""
        result: R = self.do(BatchCall(function, locks))
        return result

    def _push(self, item: _Item) -> None:
        with self._wake:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if len(self._queue) >= self._queue_max:
                raise Busy(f"{self._queue_max} changes are waiting for the database.")
            self._queue.append(item)
            if len(self._queue) >= self._awaited:
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
                self._settle(items, results)
                self._database.tend()
            except YardError as exc:  # a full disk: the next batch may fare better
                if self._faults.is_new("committer", exc.inner):
                    log.warning("committer", error=exc.inner, next=exc.next_step)
            except Exception as exc:  # a loop that is closing: the next batch may fare better
                log.error("committer", exc_info=exc)

    def _take(self) -> list[_Item]:
        """The writes of the next transaction: one large write, or others. They take turns while both wait."""
        if self._large and (self._is_large_next or not (self._queue or self._later)):
            self._is_large_next = False
            return [self._large.popleft()]
        self._is_large_next = True
        self._linger()
        return [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_max))] + self._take_later()

    def _linger(self) -> None:
        """Leave those who were told together a moment to come again together.

        A transaction costs as much as some twenty writes in it. Taken as they come, writes of many that each wait for
        their answer make small batches, which leave the thread they come through the less time to bring more.
        """
        if len(self._queue) < self._told and not self._is_closed:
            self._awaited = self._told
            self._wake.wait_for(
                lambda: len(self._queue) >= self._awaited or self._is_closed, min(self._told * LINGER_EACH_S, LINGER_S)
            )
            self._awaited = 1
        several = min(len(self._queue), self._batch_max)
        self._told = several if several > 1 else 0

    def _take_later(self) -> list[_Item]:
        """One of what can wait, and more while it is little."""
        items: list[_Item] = []
        taken = 0
        while self._later and (not items or taken + self._later[0].size <= DEFERRED_BATCH_BYTES):
            items.append(self._later.popleft())
            taken += items[-1].size
        self._later_bytes -= taken
        return items

    def _commit(self, items: list[_Item]) -> list[Any]:
        """The results of all; of a batch that failed, each by itself."""
        attempt = partial(self._attempt, items, is_replay=False)
        try:
            return self._outage.outlast(attempt, is_closed=lambda: self._is_closed)
        except (StatementTimeout, Contention) as exc:
            if isinstance(exc, StatementTimeout) and len(items) == 1:
                return [exc]
        except Unavailable as exc:
            # The connection is gone: trying each would wait for a time-out each. The callers may try again.
            return [exc] * len(items)
        except Exception as exc:  # noqa: BLE001  whatever one Write did wrong, the others must not pay for it
            if isinstance(exc, YardError) and len(items) == 1 and isinstance(items[0].write, BatchCall):
                return [exc]  # its answer: nothing of it is stored
        return replay(items, self._commit_one)

    def _commit_one(self, item: _Item, *, is_first: bool = True) -> Any:
        try:
            return self._attempt([item], is_replay=True)[0]
        except YardError:
            raise
        except Exception as exc:  # noqa: BLE001  the thread that writes must outlive every defect
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
        if self._left_out and set(groups) <= set(self._left_out):
            return [self._left_out[type(item.write)](item.write) for item in items]
        began = perf_counter()
        is_whole = False
        try:
            with self._database.write() as tx:
                batch = Batch(tx, self._now_us(), is_replay=is_replay, writes=len(items))
                batch.rows = jobs.job_lock(tx, (job for item in items for job in item.write.job_ids()))
                for kind, apply in self._appliers.items():
                    indexes = groups.get(kind, [])
                    if indexes:
                        found = apply(batch, [items[index].write for index in indexes])
                        results.update(zip(indexes, found, strict=True))
                for crowd in sorted(batch.freed):
                    batch.clusters |= concurrency_groups.concurrency_group_release(tx, crowd, batch.freed[crowd])
                insert_numbered(tx, batch.inserts, batch.events, after=batch.after)
                woken = batch.woken()
                if woken.clusters or woken.jobs or woken.versions:
                    dialect.notify(tx, msgspec.json.encode(woken).decode())
                is_whole = True
        except ConnectionLost as exc:
            exc.is_in_doubt = is_whole
            raise
        self.committed(len(items), perf_counter() - began)
        self._tell(batch, woken)
        return [results[index] for index in range(len(items))]

    def _tell(self, batch: Batch, woken: CommitNotice) -> None:
        """It is durable: whatever goes wrong from here on must not make anybody do it again."""
        try:
            for settled in batch.settled:
                settled()
            self.after_commit(woken)
        except Exception as exc:  # told late (a sweep, the next refresh) is better than done twice
            log.error("after a commit", exc_info=exc)

    def _settle(self, items: list[_Item], results: list[Any]) -> None:
        told: dict[DeliverResults, Deliveries] = {}
        for item, result in zip(items, results, strict=True):
            if item.done is not None:
                told.setdefault(item.deliver or self.deliver, []).append((item.done, result))
            elif item.future is not None and not item.future.cancelled():
                if isinstance(result, BaseException):
                    item.future.set_exception(result)
                else:
                    item.future.set_result(result)
        for deliver, some in told.items():
            try:
                deliver(some)
            except Exception as exc:  # a loop that is closing: the others are told all the same
                log.error("committer", exc_info=exc)


def apply_calls(batch: Batch, calls: list[BatchCall]) -> list[Any]:
    """Each call in its own savepoint: what it raises is its own result, and what it wrote is undone.

    One that is alone needs none: the whole transaction is undone.
    """
    results: list[Any] = []
    for call in calls:
        lists: tuple[list[Any], ...] = (batch.events, batch.inserts, batch.after, batch.settled)
        lengths = [len(each) for each in lists]
        kept = (set(batch.clusters), set(batch.jobs), set(batch.versions), Counter(batch.freed), set(batch.asked))
        try:
            with nullcontext() if batch.writes == 1 else batch.tx.begin_nested():
                results.append(call.function(batch))
        except YardError as exc:
            if batch.writes == 1 or isinstance(exc, Unavailable):
                raise
            for each, length in zip(lists, lengths, strict=True):
                del each[length:]
            batch.clusters, batch.jobs, batch.versions, batch.freed, batch.asked = kept
            results.append(exc)
    return results


def _deliver_on_this_thread(told: Deliveries) -> None:
    for done, result in told:
        done(result)
