"""The limits of users on this server: how often they send requests, and how many they keep open. In memory alone.

`Limiter.count_request` may be called from any thread: Rainbow's calls run on the gRPC port's loop and on threads.
Open requests are counted on the server's loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from threading import Lock
from time import monotonic

from switchyard.errors import Busy, Throttled, YardError
from switchyard.policy.limits import (
    JOBS_PER_REQUEST,
    PER_SERVER,
    RequestBucket,
    UserLimits,
    exceeds_limit,
    limit_refusal,
)
from switchyard.service.core.rights import Actor

# For whom the current task works: a user's name, an agent, or the server itself. Each request is a task of its own, so
# this is set once, where the credential is read, and is there wherever a thread is needed.
SERVER = ""
AGENT_PREFIX = "agent:"  # before the id of an agent; no user can be called so
ANONYMOUS = ":anonymous"  # all requests without a credential, or before it is read; no user can be called so
current_caller: ContextVar[str] = ContextVar("caller", default=SERVER)
current_address: ContextVar[str] = ContextVar("address", default="")  # of the request; empty: none, as of gRPC
DECISIONS = "decisions"  # a limit that no config file sets: decisions of one user that wait for a thread
DECISIONS_RETRY_S = 1
SWEEP_MIN = 10_000  # buckets that are kept before full ones are dropped
STREAMS_MAX = 500  # streams of events on one server: each costs a query per burst of events


class TooManyGuesses(Busy):
    """A secret was not compared. Where messages with a wrong secret are counted, this one counts, too."""


class Limiter:
    """Counts requests and open requests of users. A request costs a look-up and a few floats."""

    def __init__(
        self,
        limits_of: Callable[[str], UserLimits],
        count_refusal: Callable[[str], None],
        clock: Callable[[], float] = monotonic,
        *,
        connections: int = 1000,
        address_connections: int = 500,
        uploads: int = 4,
    ) -> None:
        """`connections`, `uploads`: how many HTTP connections and uploads the server has in all.

        `address_connections`: how many connections one address may have.
        """
        self._limits_of = limits_of
        self._count_refusal = count_refusal  # called with the name of a limit that refuses
        self._clock = clock
        self._buckets: dict[str, RequestBucket] = {}
        self._buckets_lock = Lock()
        # The other connections are for agents, whose polls are parked, and for short requests.
        self.open = {
            "waits": OpenRequestSlots(connections // 2, connections // 4, "waits"),
            "streams": OpenRequestSlots(min(STREAMS_MAX, connections // 4), connections // 8, "streams of events"),
        }
        # The other half of an address's connections is for its short requests: waits must not keep submits out.
        self._parked_by_address = OpenRequestSlots(
            connections, address_connections // 2, "waits and streams", kind="address"
        )
        self.uploads = OpenRequestSlots(uploads, max(1, uploads // 2), "uploads of graphs")

    def count_request(self, actor: Actor) -> float:
        """Count a request of this user. Returns how many seconds it should wait before it begins.

        Raises Throttled for one too many. Administrators have no limit here: they set the limits.
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
            self._count_refusal(error.limit)
            raise error
        return delay_s

    def charge_jobs(self, actor: Actor, jobs: int) -> None:
        """Count a bulk submit, which came as one request, by its number of jobs."""
        with self._buckets_lock:
            bucket = self._buckets.get(actor.name)
            if bucket is not None and not actor.is_platform_admin:
                bucket.charge(self._limits_of(actor.name), self._clock(), jobs / JOBS_PER_REQUEST)

    @contextmanager
    def hold_open(self, actor: Actor, name: str) -> Iterator[None]:
        """Count a wait or a stream (`waits`, `streams`) of this user for as long as the block runs.

        The configured limit does not bind administrators. The slots do: they keep connections free for everybody.
        """
        slots, most = self.open[name], getattr(self._limits_of(actor.name), name)
        used = slots.of(actor.name)
        if exceeds_limit(most, used, 1) and not actor.is_platform_admin:
            self._count_refusal(name)
            raise limit_refusal(name, most, used)
        with slots.hold(actor.name), self._parked_by_address.hold(current_address.get()):
            yield

    def calls_of(self, user: str) -> int:
        """How many requests of this user may wait for a thread; 0: no limit."""
        return self._limits_of(user).calls

    def calls_refusal(self, most: int, used: int) -> YardError:
        """One request too many waits for a thread."""
        self._count_refusal("calls")
        return limit_refusal("calls", most, used)

    def decisions_refusal(self, most: int, used: int) -> YardError:
        """One decision too many waits for a decision thread."""
        self._count_refusal(DECISIONS)
        error = Throttled(
            f"{used} decisions of yours that take long wait for a thread, and one user may have {most} waiting on "
            f"{PER_SERVER}. The number is set in the code.",
            next_step="Send fewer requests at the same time.",
        )
        error.limit, error.retry_after_s = DECISIONS, DECISIONS_RETRY_S
        return error

    def _drop_full(self, now_s: float) -> None:
        """Drop buckets that are full again: they say no more than none. Names are those of users, so there are few."""
        if len(self._buckets) >= SWEEP_MIN:
            partly_used = {}
            for name, bucket in self._buckets.items():
                limits = self._limits_of(name)
                if bucket.left + (now_s - bucket.at_s) * limits.requests < limits.burst:
                    partly_used[name] = bucket
            self._buckets = partly_used


# Refused requests are asked to come again one after the other, at this pace. If thousands came again each second, the
# server would have no time for other requests.
RETRIES_PER_S = 50
RETRY_S_MAX = 15  # longer, and a client whose calls may take 30 s would give up


class OpenRequestSlots:
    """Used on the server's event loop alone. `noun`: what is open, in the plural. `kind`: of those who hold slots."""

    def __init__(
        self,
        slots: int,
        owner_slots: int,
        noun: str,
        *,
        kind: str = "user",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._slots = slots
        self._owner_slots = owner_slots
        self._noun = noun
        self._kind = kind
        self._clock = clock
        self._last_retry_at = 0.0  # when the last refused request comes again
        self._by_owner: dict[str, int] = {}
        self.total = 0

    def of(self, owner: str) -> int:
        return self._by_owner.get(owner, 0)

    @contextmanager
    def hold(self, owner: str) -> Iterator[None]:
        """Hold a slot while the block runs; 429 if none is free."""
        used = self.of(owner)
        if used >= self._owner_slots:
            who = "You have" if self._kind == "user" else f"Your {self._kind} has"
            raise self._busy(
                f"{who} {used} {self._noun} open here; at most {self._owner_slots} are for one {self._kind}."
            )
        if self.total >= self._slots:
            raise self._busy(f"{self.total} {self._noun} are open here.")
        self.total += 1
        self._by_owner[owner] = used + 1
        try:
            yield
        finally:
            self.total -= 1
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

    def _busy(self, text: str) -> Busy:
        now = self._clock()
        self._last_retry_at = min(max(now, self._last_retry_at) + 1 / RETRIES_PER_S, now + RETRY_S_MAX)
        error = Busy(text)
        error.retry_after_s = max(1, ceil(self._last_retry_at - now))
        return error
