"""Usage per user, for the user limits: live jobs, tasks of live arrays, stored bytes.

The database has the totals: a running sum of bytes, and an index that counts live jobs. Each server caches the last
count and adds its own changes, so a submit needs no query. Changes of other servers appear at the next count, so users
may exceed a limit by what all servers accept within COUNT_INTERVAL_S.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from switchyard.errors import YardError
from switchyard.model.cluster.idset import IdSet
from switchyard.policy.limits import JOB_OVERHEAD_BYTES, UserLimits, exceeds_limit, limit_refusal
from switchyard.service.core.unreadable_rows import read_or_default
from switchyard.store.engine.database import Tx
from switchyard.store.engine.new_rows import NewJobRow
from switchyard.store.jobs import usage as store

if TYPE_CHECKING:
    from switchyard.service.core.writes.batch import Batch
    from switchyard.service.core.writes.committer import Committer
    from switchyard.store.engine.database import Database

COUNT_INTERVAL_S = 1.0  # between two rounds; every round recounts the users near a limit
NEAR_LIMIT_SHARE = 0.5  # a user who has used this share of a limit is near it
STALE_ROUNDS = 30  # other users are recounted after this many rounds
UNLIMITED = UserLimits(0, 0, 0, 0, 1, 0, 0, 0, 0, 0)


class LimitedUser(Protocol):
    """The part of an actor that limits need."""

    @property
    def name(self) -> str: ...

    @property
    def is_platform_admin(self) -> bool: ...


@dataclass(slots=True)
class Amounts:
    """The usage of one user."""

    jobs: int = 0
    tasks: int = 0
    bytes: int = 0

    def add(self, more: Amounts) -> None:
        self.jobs += more.jobs
        self.tasks += more.tasks
        self.bytes += more.bytes


NO_USAGE = Amounts()


@dataclass(frozen=True, slots=True)
class UsageRoom:
    """How much more a user may have. None: no limit. `tasks_limit`: of the user; 0: none."""

    jobs: int | None = None
    tasks: int | None = None
    tasks_limit: int = 0


@dataclass(slots=True)
class _Counted:
    """The cached usage of one user."""

    total: Amounts = field(default_factory=Amounts)  # the database's count plus `since`
    since: Amounts = field(default_factory=Amounts)  # added by this server since that count
    round: int | None = None  # of the last count; none: never counted


class UserUsage:
    """The cached usage of all users, one object per server. Thread-safe; the committer adds durable changes."""

    def __init__(
        self,
        limits_of: Callable[[str], UserLimits] = lambda _: UNLIMITED,
        is_exempt: Callable[[str], bool] = lambda _: False,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits_of = limits_of
        self._is_exempt = is_exempt  # by owner name: administrators have no limits
        self._refused = refused
        self._lock = threading.Lock()
        self._users: dict[str, _Counted] = {}
        self._active_users: set[str] = set()  # users active since the last round
        self._unwritten: Counter[str] = Counter()  # changes of bytes that are not in the database yet
        self._round = 0

    def refuse_over(self, actor: LimitedUser, *, tasks: int = 0, jobs: int = 1, size: int = 0) -> None:
        """Raise LimitReached if these additions exceed a limit of the user."""
        if actor.is_platform_admin:
            return
        limits, counted = self._limits_of(actor.name), self._users.get(actor.name)
        self._active_users.add(actor.name)
        used = NO_USAGE if counted is None else counted.total
        if exceeds_limit(limits.jobs, used.jobs, jobs):
            raise self._refusal("jobs", limits.jobs, used.jobs, jobs)
        if tasks and exceeds_limit(limits.tasks, used.tasks, tasks):
            raise self._refusal("tasks", limits.tasks, used.tasks, tasks)
        if exceeds_limit(limits.bytes, used.bytes, size):
            raise self._refusal("bytes", limits.bytes, used.bytes, size)

    def room(self, actor: LimitedUser) -> UsageRoom:
        """How many jobs and tasks more the user may have. It is counted once for many of them."""
        if actor.is_platform_admin:
            return UsageRoom()
        limits, counted = self._limits_of(actor.name), self._users.get(actor.name)
        self._active_users.add(actor.name)
        used = NO_USAGE if counted is None else counted.total
        by_jobs = limits.jobs - used.jobs if limits.jobs else None
        by_bytes = (limits.bytes - used.bytes) // JOB_OVERHEAD_BYTES if limits.bytes else None
        rooms = [max(0, room) for room in (by_jobs, by_bytes) if room is not None]
        return UsageRoom(
            min(rooms, default=None), max(0, limits.tasks - used.tasks) if limits.tasks else None, limits.tasks
        )

    def refuse_executions(self, actor: LimitedUser, live: int) -> None:
        """Raise LimitReached if one more execution exceeds the user's limit. `live`: how many there are."""
        limit = self._limits_of(actor.name).executions
        if not actor.is_platform_admin and exceeds_limit(limit, live, 1):
            raise self._refusal("executions", limit, live, 1)

    def executions_left(self, actor: LimitedUser, live: int) -> int | None:
        """How many executions more the user may have. None: no limit. `live`: how many there are."""
        limit = self._limits_of(actor.name).executions
        return limit - live if limit and not actor.is_platform_admin else None

    def _refusal(self, name: str, limit: int, used: int, asked: int) -> YardError:
        self._refused(name)
        return limit_refusal(name, limit, used, asked)

    def is_full(self, owner: str) -> bool:
        """Whether this user is at the limit of stored bytes, so that further output is dropped."""
        counted, limit = self._users.get(owner), self._limits_of(owner).bytes
        if counted is None or not exceeds_limit(limit, counted.total.bytes, 1) or self._is_exempt(owner):
            return False
        self._active_users.add(owner)
        return True

    def note(self, amounts: Mapping[str, Amounts]) -> None:
        """Add durable changes of this server; negative amounts are removals."""
        with self._lock:
            for owner, more in amounts.items():
                counted = self._users.setdefault(owner, _Counted())
                counted.since.add(more)
                counted.total.add(more)
                self._unwritten[owner] += more.bytes
                self._active_users.add(owner)

    def note_new(self, batch: Batch, rows: Iterable[tuple[NewJobRow, str]]) -> None:
        """Add the jobs that this batch inserts, after its commit. `rows`: row and spec of each job."""
        added: dict[str, Amounts] = {}
        for row, spec in rows:
            amounts = added.setdefault(row.owner, Amounts())
            amounts.bytes += JOB_OVERHEAD_BYTES + len(spec)
            if row.ended_us is None:
                amounts.jobs += 1
                amounts.tasks += len(IdSet.parse(row.array)) if row.array else 0
        if added:
            batch.settled.append(lambda: self.note(added))

    def note_bytes(self, batch: Batch | None, by_owner: Mapping[str, int]) -> None:
        """Add stored or removed output, after the batch's commit. `batch`: None outside of a transaction."""
        amounts = {owner: Amounts(bytes=size) for owner, size in by_owner.items() if size}
        if batch is None:
            self.note(amounts)
        elif amounts:
            batch.settled.append(lambda: self.note(amounts))

    def refresh(self, database: Database, committer: Committer) -> None:
        """Run one round: write changes of bytes to the database, and recount the users that are due."""
        self._round += 1
        self._write(committer)
        active, self._active_users = self._active_users, set()
        active = set(active)  # a copy: another thread may still add to the old set
        due = [name for name in active if self._is_due(name)]
        if due:
            try:
                with database.read() as tx:
                    self.count(tx, due)
            except YardError:
                self._active_users |= active
                raise
        # Users near a limit stay for the next round: ends of jobs are not reported here.
        self._active_users |= {name for name in due if self._is_due(name)}

    def freshen(self, database: Database, owner: str) -> bool:
        """Recount one user before a refusal. Returns false if the user was counted in this round."""
        counted = self._users.get(owner)
        if counted is not None and counted.round == self._round:
            return False
        with database.read() as tx:
            self.count(tx, [owner])
        return True

    def count(self, tx: Tx, owners: list[str]) -> None:
        """Read the usage of these users from the database."""
        with self._lock:
            for owner in owners:  # additions during the query may count twice until the next count
                self._users.setdefault(owner, _Counted()).since = Amounts()
            unwritten = {owner: self._unwritten[owner] for owner in owners}
        sizes, live = store.bytes_read(tx, owners), store.live_jobs(tx, owners)
        tasks: Counter[str] = Counter()
        for row in store.live_arrays(tx, owners):
            tasks[row.owner] += len(read_or_default("jobs", row.id, partial(IdSet.parse, row.array), IdSet()))
        with self._lock:
            for owner in owners:
                counted = self._users[owner]
                total = Amounts(live.get(owner, 0), tasks[owner], sizes.get(owner, 0) + unwritten[owner])
                total.add(counted.since)
                counted.total, counted.round = total, self._round

    def _is_due(self, name: str) -> bool:
        counted, limits = self._users.get(name), self._limits_of(name)
        if counted is None or counted.round is None or self._round - counted.round >= STALE_ROUNDS:
            return True
        total = counted.total
        return any(
            limit and used > NEAR_LIMIT_SHARE * limit
            for used, limit in ((total.jobs, limits.jobs), (total.tasks, limits.tasks), (total.bytes, limits.bytes))
        )

    def _write(self, committer: Committer) -> None:
        with self._lock:
            changed = {owner: size for owner, size in self._unwritten.items() if size}
            self._unwritten = Counter()
        if not changed:
            return
        try:
            committer.call(lambda batch: store.bytes_add(batch.tx, changed))
        except YardError:
            with self._lock:
                self._unwritten.update(changed)
            raise
