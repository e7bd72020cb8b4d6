"""What each user has open on this server, and how often they ask. Kept in memory alone.

`Limiter.request` may be called from any thread: Rainbow's calls run on the gRPC port's loop and on threads. Waits and
streams are counted on the server's loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from time import monotonic
from typing import Protocol

from switchyard.errors import Throttled, YardError
from switchyard.policy.limits import (
    JOBS_PER_REQUEST,
    PER_SERVER,
    RequestBucket,
    UserLimits,
    exceeds_limit,
    limit_refusal,
)

# For whom the present task works: a user's name, an agent, or nobody for what the server does by itself. Each request
# is a task of its own, so this is set once, where the credential is read, and found wherever a thread is asked for.
SERVER = ""
ANONYMOUS = ":anonymous"  # all requests without a credential, or before it is read; no user can be called so
current_caller: ContextVar[str] = ContextVar("caller", default=SERVER)
DECISIONS = "decisions"  # a limit that no config file sets: decisions of one user that wait for a thread
DECISIONS_RETRY_S = 1
SWEEP_MIN = 10_000  # buckets that are kept before full ones are dropped


class Who(Protocol):
    """An actor, as far as limits go."""

    @property
    def name(self) -> str: ...

    @property
    def is_platform_admin(self) -> bool: ...


class Limiter:
    """The limits of users on this server. A request costs a look-up and a few floats."""

    def __init__(
        self,
        limits_of: Callable[[str], UserLimits],
        refused: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limits_of = limits_of
        self._refused = refused  # told the name of a limit each time that it refuses
        self._clock = clock
        self._buckets: dict[str, RequestBucket] = {}
        self._buckets_lock = Lock()
        self._open: dict[tuple[str, str], int] = {}  # limit and user → how many are open

    def request(self, actor: Who) -> float:
        """A request of this user comes in: how long it should wait before it begins. Throttled: it is one too many.

        Administrators may send as many as they like: they set the limits.
        """
        if actor.is_platform_admin:
            return 0.0
        limits = self._limits_of(actor.name)
        if not limits.requests:
            return 0.0
        with self._buckets_lock:
            now_s = self._clock()
            bucket = self._buckets.get(actor.name)
            if bucket is None:
                self._drop_full(now_s)
                bucket = self._buckets[actor.name] = RequestBucket(limits.burst, now_s)
            error = bucket.take(limits, now_s)
            delay_s = bucket.delay_s(limits, now_s) if error is None else 0.0
        if error is not None:
            self._refused(error.limit)
            raise error
        return delay_s

    def charge_jobs(self, actor: Who, jobs: int) -> None:
        """A bulk submit of so many jobs, which was counted as one request, counts as more."""
        with self._buckets_lock:
            bucket = self._buckets.get(actor.name)
            if bucket is not None and not actor.is_platform_admin:
                bucket.charge(self._limits_of(actor.name), self._clock(), jobs / JOBS_PER_REQUEST)

    @contextmanager
    def holding(self, actor: Who, name: str) -> Iterator[None]:
        """One more wait or stream of this user, for as long as it is open."""
        key, most = (name, actor.name), getattr(self._limits_of(actor.name), name)
        used = self._open.get(key, 0)
        if exceeds_limit(most, used, 1) and not actor.is_platform_admin:
            self._refused(name)
            raise limit_refusal(name, most, used)
        self._open[key] = used + 1
        try:
            yield
        finally:
            left = self._open[key] - 1
            if left:
                self._open[key] = left
            else:
                del self._open[key]

    def open_of(self, actor: Who, name: str) -> int:
        return self._open.get((name, actor.name), 0)

    def calls_of(self, user: str) -> int:
        """How many requests of this user may wait for a thread; 0: no limit."""
        return self._limits_of(user).calls

    def calls_refusal(self, most: int, used: int) -> YardError:
        """One request too many waits for a thread."""
        self._refused("calls")
        return limit_refusal("calls", most, used)

    def decisions_refusal(self, most: int, used: int) -> YardError:
        """One decision too many waits for a decision thread."""
        self._refused(DECISIONS)
        error = Throttled(
            f"{used} decisions of yours that take long wait for a thread, and one user may have {most} waiting on "
            f"{PER_SERVER}. The number is set in the code.",
            next_step="Send fewer requests at the same time.",
        )
        error.limit, error.retry_after_s = DECISIONS, DECISIONS_RETRY_S
        return error

    def _drop_full(self, now_s: float) -> None:
        """A bucket that is full again says no more than none. Names are those of users, so there are few."""
        if len(self._buckets) >= SWEEP_MIN:
            kept = {}
            for name, bucket in self._buckets.items():
                limits = self._limits_of(name)
                if bucket.left + (now_s - bucket.at_s) * limits.requests < limits.burst:
                    kept[name] = bucket
            self._buckets = kept
