"""What users have on the whole yard, and whether that is too much: live jobs, tasks of live arrays, stored bytes.

The database knows: bytes are summed there as they come and go, live jobs are counted by an index. Here the last count
is kept with what this server has added since, so a submit costs two look-ups. What other servers add is seen at the
next count: a user may pass a limit by what all servers accept within `COUNT_S`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from switchyard.errors import YardError
from switchyard.model.idset import IdSet
from switchyard.policy.limits import JOB_OVERHEAD_BYTES, UserLimits, exceeds_limit, limit_refusal
from switchyard.service.unreadable_rows import read_or_default
from switchyard.store import usage as store
from switchyard.store.database import Tx

if TYPE_CHECKING:
    from switchyard.service.committer import Batch, Committer
    from switchyard.store.database import Database

COUNT_INTERVAL_S = 1.0  # between two rounds: users who are near a limit are counted anew in each
NEAR_LIMIT_SHARE = 0.5  # of a limit
STALE_ROUNDS = 30  # the others are counted anew after so many
UNLIMITED = UserLimits(0, 0, 0, 0, 1, 0, 0, 0)


class LimitedUser(Protocol):
    """An actor, as far as limits go."""

    @property
    def name(self) -> str: ...

    @property
    def is_platform_admin(self) -> bool: ...


@dataclass(slots=True)
class Amounts:
    """What a user has."""

    jobs: int = 0
    tasks: int = 0
    bytes: int = 0

    def add(self, more: Amounts) -> None:
        self.jobs += more.jobs
        self.tasks += more.tasks
        self.bytes += more.bytes


NO_USAGE = Amounts()


@dataclass(slots=True)
class _Counted:
    """What a user has: as the database said, and what this server has added since.

    `since`: that alone. `round`: when the database was last asked; none: never.
    """

    total: Amounts = field(default_factory=Amounts)
    since: Amounts = field(default_factory=Amounts)
    round: int | None = None


class UserUsage:
    """One per server. Asked on the loop and on threads; added to by the committer once a change is durable."""

    def __init__(
        self,
        limits_of: Callable[[str], UserLimits] = lambda _: UNLIMITED,
        is_exempt: Callable[[str], bool] = lambda _: False,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits_of = limits_of
        self._is_exempt = is_exempt  # of an owner by name: administrators have no limits
        self._refused = refused
        self._lock = threading.Lock()
        self._users: dict[str, _Counted] = {}
        self._asked: set[str] = set()  # users who did something since the last round
        self._unwritten: Counter[str] = Counter()  # bytes that the database is not told of yet
        self._round = 0

    def refuse_over(self, actor: LimitedUser, *, tasks: int = 0, jobs: int = 1, size: int = 0) -> None:
        """Raise LimitReached if this user may not have so many more."""
        if actor.is_platform_admin:
            return
        limits, counted = self._limits_of(actor.name), self._users.get(actor.name)
        self._asked.add(actor.name)
        have = NO_USAGE if counted is None else counted.total
        if exceeds_limit(limits.jobs, have.jobs, jobs):
            raise self._refusal("jobs", limits.jobs, have.jobs, jobs)
        if tasks and exceeds_limit(limits.tasks, have.tasks, tasks):
            raise self._refusal("tasks", limits.tasks, have.tasks, tasks)
        if exceeds_limit(limits.bytes, have.bytes, size):
            raise self._refusal("bytes", limits.bytes, have.bytes, size)

    def _refusal(self, name: str, most: int, used: int, asked: int) -> YardError:
        self._refused(name)
        return limit_refusal(name, most, used, asked)

    def is_full(self, owner: str) -> bool:
        """Whether no more output of this user's jobs is kept."""
        counted, most = self._users.get(owner), self._limits_of(owner).bytes
        if counted is None or not exceeds_limit(most, counted.total.bytes, 1) or self._is_exempt(owner):
            return False
        self._asked.add(owner)
        return True

    def note(self, amounts: Mapping[str, Amounts]) -> None:
        """What this server has added, or removed, durably."""
        with self._lock:
            for owner, more in amounts.items():
                counted = self._users.setdefault(owner, _Counted())
                counted.since.add(more)
                counted.total.add(more)
                self._unwritten[owner] += more.bytes
                self._asked.add(owner)

    def note_new(self, batch: Batch, rows: Iterable[tuple[dict[str, object], str]]) -> None:
        """Jobs that are inserted with this batch: row and spec."""
        found: dict[str, Amounts] = {}
        for row, spec in rows:
            amounts = found.setdefault(str(row["owner"]), Amounts())
            amounts.bytes += JOB_OVERHEAD_BYTES + len(spec)
            if row.get("ended_us") is None:
                amounts.jobs += 1
                amounts.tasks += len(IdSet.parse(str(row["array"]))) if row.get("array") else 0
        if found:
            batch.settled.append(lambda: self.note(found))

    def note_bytes(self, batch: Batch | None, by_owner: Mapping[str, int]) -> None:
        """Output that was kept or removed with this batch; none: outside of any."""
        amounts = {owner: Amounts(bytes=size) for owner, size in by_owner.items() if size}
        if batch is None:
            self.note(amounts)
        elif amounts:
            batch.settled.append(lambda: self.note(amounts))

    def look(self, database: Database, committer: Committer) -> None:
        """One round: tell the database of bytes, and count anew whoever needs it."""
        self._round += 1
        self._write(committer)
        asked, self._asked = self._asked, set()
        asked = set(asked)  # a thread may have been about to add to the old one
        due = [name for name in asked if self._is_due(name)]
        if due:
            try:
                with database.read() as tx:
                    self.count(tx, due)
            except YardError:
                self._asked |= asked
                raise
        # Who is near a limit is looked at in each round: nobody says that jobs have ended.
        self._asked |= {name for name in due if self._is_due(name)}

    def freshen(self, database: Database, owner: str) -> bool:
        """Ask the database now, before a user is told no; false: it was asked a moment ago."""
        counted = self._users.get(owner)
        if counted is not None and counted.round == self._round:
            return False
        with database.read() as tx:
            self.count(tx, [owner])
        return True

    def count(self, tx: Tx, owners: list[str]) -> None:
        """Ask the database what these users have now."""
        with self._lock:
            for owner in owners:  # what is added from here on may be counted twice, until the next time
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
        have = counted.total
        return any(
            most and used > NEAR_LIMIT_SHARE * most
            for used, most in ((have.jobs, limits.jobs), (have.tasks, limits.tasks), (have.bytes, limits.bytes))
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
