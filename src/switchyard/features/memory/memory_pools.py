"""Token pools in the memory of one server. After a restart the tokens of jobs are restored from the database, and
grants are withheld until the leases of callers are over."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from switchyard.model.rules.tokens import (
    EXHAUSTED_BY,
    GRANTED,
    NO_CONSTRAINTS,
    AllocateRequest,
    Allocation,
    AllocationStatus,
    LimitedBy,
    PoolTokenRequest,
    RenewRequest,
    TokenHolder,
    check_pool_token,
    check_quota,
    checked_lease_s,
)
from switchyard.server.config.config import ResourceManagerSection
from switchyard.tokens.pools import (
    JOB_ID_PREFIX,
    LEASE_S_MAX,
    JobToken,
    PoolStatus,
    TokenPools,
    check_claim_count,
    no_such_pool,
    owner_conflict,
    pool_rebuilding,
    quota_conflict,
    units_conflict,
)

TICKS_PER_S = 10  # a lease may last up to one tick longer than requested
TokenKey = tuple[str, str, str]  # project, domain, token
Holding = tuple[int, int, float, str]  # units, the tick in which the lease ends, held since, owner


class MemoryKind:
    """It is a `server.config.token_pools_section.PoolsKind`."""

    def mistakes(self, _section: ResourceManagerSection) -> list[str]:
        return []

    def make(self, section: ResourceManagerSection, *, lease_s_max: int) -> TokenPools:
        return MemoryPools(quota_max=section.resourceMaxQuota, lease_s_max=lease_s_max)


@dataclass(slots=True)
class _Pool:
    quota: int
    per_s: int | None
    used: int = 0
    callers: dict[TokenKey, Holding] = field(default_factory=dict)
    jobs: dict[TokenKey, Holding] = field(default_factory=dict)
    by_project: dict[str, int] = field(default_factory=dict)
    by_namespace: dict[tuple[str, str], int] = field(default_factory=dict)
    ending: dict[int, set[TokenKey]] = field(default_factory=dict)  # tick → tokens of callers whose lease ends then
    sweep_at: float = 0.0  # no lease ends before this
    opens_at: float = -math.inf

    def count(self, key: TokenKey, units: int) -> None:
        """Add units (negative: given back) to the counts of the pool, the project, and the project and domain."""
        self.used += units
        project, namespace = key[0], key[:2]
        units_held = self.by_project.get(project, 0) + units
        if units_held:
            self.by_project[project] = units_held
        else:
            del self.by_project[project]
        units_held = self.by_namespace.get(namespace, 0) + units
        if units_held:
            self.by_namespace[namespace] = units_held
        else:
            del self.by_namespace[namespace]

    def lease(self, key: TokenKey, holding: Holding) -> None:
        """Store a caller's token with the end of its lease."""
        self.callers[key] = holding
        ending = self.ending.get(holding[1])
        if ending is None:
            self.ending[holding[1]] = {key}
        else:
            ending.add(key)

    def unlease(self, key: TokenKey, holding: Holding) -> None:
        self.ending[holding[1]].discard(key)  # an empty set is removed when its tick is over

    def sweep(self, now: float) -> None:
        """Drop the tokens whose lease is over. Each token is visited once."""
        tick = int(now * TICKS_PER_S)
        for ended in [ended for ended in self.ending if ended < tick]:
            for key in self.ending.pop(ended):
                self.count(key, -self.callers.pop(key)[0])
        self.sweep_at = (tick + 1) / TICKS_PER_S

    def renewed(self, key: TokenKey, holding: Holding, now: float, lease_s: int) -> None:
        self.unlease(key, holding)
        self.lease(key, (holding[0], _tick(now + lease_s), holding[2], holding[3]))


class MemoryPools(TokenPools):
    """One lock and dictionaries: the cost of a call does not depend on how many tokens are held."""

    is_enforced = True

    def __init__(
        self, *, quota_max: int, lease_s_max: int = LEASE_S_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quota_max = quota_max
        self._lease_s_max = lease_s_max
        self._clock = clock
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool] = {}
        self._is_whole = False

    def get_id(self) -> str:
        return "memoryresourcemanager"

    def register_resource(self, namespace: str, quota: int, *, per_s: int | None = None) -> None:
        check_quota(quota, self._quota_max)
        with self._lock:
            pool = self._pools.get(namespace)
            if pool is None:
                self._pools[namespace] = self._new(quota, per_s, None)
            elif (pool.quota, pool.per_s) != (quota, per_s):
                raise quota_conflict(namespace, pool.quota, pool.per_s)

    def settle(self, namespace: str, quota: int, per_s: int | None, *, free_in_s: float | None = None) -> None:
        with self._lock:
            pool = self._pools.get(namespace)
            if pool is None or pool.per_s != per_s:
                self._pools[namespace] = self._new(quota, per_s, free_in_s)
            else:
                pool.quota = quota

    def set_quota(self, namespace: str, quota: int) -> None:
        check_quota(quota, self._quota_max)
        with self._lock:
            self._swept(namespace, self._clock()).quota = quota

    def remove(self, namespace: str) -> bool:
        with self._lock:
            pool = self._swept(namespace, self._clock())
            if pool.callers or pool.jobs:
                return False
            del self._pools[namespace]
            return True

    def allocate(self, namespace: str, request: AllocateRequest, *, owner: str = "") -> Allocation:
        check_pool_token(request.token, request.project, request.domain)
        lease_s = checked_lease_s(request.lease_s, self._lease_s_max)
        now = self._clock()
        with self._lock:
            return _allocate(namespace, self._open(namespace, now), request, lease_s, owner, now)

    def allocate_many(
        self, namespace: str, requests: Sequence[AllocateRequest], *, owner: str = ""
    ) -> list[Allocation]:
        check_claim_count(requests)
        for request in requests:
            check_pool_token(request.token, request.project, request.domain)
        leases_s = [checked_lease_s(request.lease_s, self._lease_s_max) for request in requests]
        now = self._clock()
        with self._lock:
            pool = self._open(namespace, now)
            return [
                _allocate(namespace, pool, request, lease_s, owner, now)
                for request, lease_s in zip(requests, leases_s, strict=True)
            ]

    def renew(self, namespace: str, request: RenewRequest, *, owner: str = "") -> bool:
        check_pool_token(request.token, request.project, request.domain)
        lease_s = checked_lease_s(request.lease_s, self._lease_s_max)
        key, now = _key(request), self._clock()
        with self._lock:
            pool = self._swept(namespace, now)
            holding = pool.callers.get(key)
            if holding is not None:
                is_own = not _is_of_other_owner(holding, owner)
                if is_own and pool.per_s is None:
                    pool.renewed(key, holding, now, lease_s)
                return is_own
            if pool.per_s is not None or self._opens_in_s(pool, now) == 0 or pool.used + request.units > pool.quota:
                return False
            # While the pool is rebuilt, a holder is believed as far as the quota allows.
            pool.lease(key, (request.units, _tick(now + lease_s), now, owner))
            pool.count(key, request.units)
            return True

    def release(self, namespace: str, request: PoolTokenRequest, *, owner: str = "") -> bool:
        with self._lock:
            pool, key = self._swept(namespace, self._clock()), (request.project, request.domain, request.token)
            if _is_of_other_owner(pool.callers.get(key), owner):
                raise owner_conflict(namespace, request.token)
            return _release(pool, key)

    def release_many(self, namespace: str, requests: Iterable[PoolTokenRequest]) -> list[bool]:
        with self._lock:
            pool = self._swept(namespace, self._clock())
            return [_release(pool, _key(request)) for request in requests]

    def stand(self, namespace: str) -> PoolStatus:
        now = self._clock()
        with self._lock:
            pool = self._swept(namespace, now)
            opens_in_s = self._opens_in_s(pool, now)
            return PoolStatus(pool.quota, pool.used, pool.per_s, len(pool.jobs), len(pool.callers), opens_in_s)

    def holders(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[TokenHolder], str]:
        first, now = int(after) if after.isascii() and after.isdigit() else 0, self._clock()
        with self._lock:
            pool = self._swept(namespace, now)
            both = chain(
                ((key, holding, None) for key, holding in pool.callers.items()),
                ((key, holding, key[2]) for key, holding in pool.jobs.items()),
            )
            holders = [_holder(*entry, now) for entry in islice(both, first, first + limit)]
            is_all = first + limit >= len(pool.callers) + len(pool.jobs)
        return holders, "" if is_all else str(first + limit)

    def lead(self, term: str) -> None:
        """Nothing to do: there is only one server."""

    def job_take(self, namespace: str, claim: JobToken) -> Allocation:
        now = self._clock()
        with self._lock:
            pool = self._open(namespace, now)
            if pool.per_s is not None:
                request = AllocateRequest(JOB_ID_PREFIX + claim.job, claim.project, claim.domain, claim.units)
                return _allocate(namespace, pool, request, 1, "", now)
            key = (claim.project, claim.domain, claim.job)
            if key in pool.jobs:
                return GRANTED
            if pool.used + claim.units > pool.quota:
                return EXHAUSTED_BY[LimitedBy.POOL]
            _hold_for_job(pool, claim, now)
            return GRANTED

    def job_restore(self, namespace: str, claims: Iterable[JobToken]) -> None:
        now = self._clock()
        with self._lock:
            pool = self._swept(namespace, now)
            for claim in claims:
                if (claim.project, claim.domain, claim.job) not in pool.jobs:
                    _hold_for_job(pool, claim, now)

    def job_give(self, namespace: str, claims: Iterable[JobToken]) -> None:
        with self._lock:
            pool = self._swept(namespace, self._clock())
            for claim in claims:
                key = (claim.project, claim.domain, claim.job)
                holding = pool.jobs.pop(key, None)
                if holding is not None:
                    pool.count(key, -holding[0])

    def jobs(self, namespace: str) -> Mapping[str, JobToken]:
        with self._lock:
            items = self._swept(namespace, self._clock()).jobs.items()
            return {key[2]: JobToken(key[2], held_token[0], key[0], key[1]) for key, held_token in items}

    def recount(self, namespace: str) -> bool:
        """Nothing to do: no other process changes the counts."""
        if namespace not in self._pools:
            raise no_such_pool(namespace)
        return False

    def is_whole(self) -> bool:
        return self._is_whole

    def begin(self, *, is_first: bool) -> bool:
        with self._lock:
            for pool in self._pools.values() if is_first else ():
                pool.opens_at = -math.inf
            self._is_whole = True
        return is_first

    def close(self) -> None:
        pass

    def _new(self, quota: int, per_s: int | None, free_in_s: float | None) -> _Pool:
        """Make a pool. It opens later if an earlier process may have granted tokens of it."""
        if self._is_whole:
            return _Pool(quota, per_s)
        wait_s = max(self._lease_s_max, per_s or 0) if free_in_s is None else free_in_s
        return _Pool(quota, per_s, opens_at=self._clock() + wait_s)

    def _swept(self, namespace: str, now: float) -> _Pool:
        """The pool, without tokens whose lease is over."""
        pool = self._pools.get(namespace)
        if pool is None:
            raise no_such_pool(namespace)
        if now >= pool.sweep_at:
            pool.sweep(now)
        return pool

    def _open(self, namespace: str, now: float) -> _Pool:
        """The pool; raises Rebuilding if it may not grant yet."""
        pool = self._swept(namespace, now)
        if not self._is_whole or now < pool.opens_at:
            raise pool_rebuilding(namespace, self._opens_in_s(pool, now) or 0)
        return pool

    def _opens_in_s(self, pool: _Pool, now: float) -> float | None:
        return max(0.0, pool.opens_at - now) if self._is_whole else None


def _allocate(  # noqa: PLR0917  named arguments would cost a tenth of the time
    namespace: str, pool: _Pool, request: AllocateRequest, lease_s: int, owner: str, now: float
) -> Allocation:
    key, units = (request.project, request.domain, request.token), request.units
    holding = pool.callers.get(key)
    if holding is not None:
        if _is_of_other_owner(holding, owner):
            raise owner_conflict(namespace, request.token)
        if holding[0] != units:
            raise units_conflict(namespace, request.token, units)
        if pool.per_s is None:
            pool.renewed(key, holding, now, lease_s)
        return GRANTED
    if pool.used + units > pool.quota:
        return EXHAUSTED_BY[LimitedBy.POOL] if pool.per_s is None else _exhausted_until(pool, now)
    constraints = request.constraints
    if constraints is not NO_CONSTRAINTS:
        cap = constraints.project
        if cap is not None and pool.by_project.get(key[0], 0) + units > cap:
            return EXHAUSTED_BY[LimitedBy.PROJECT]
        cap = constraints.namespace
        if cap is not None and pool.by_namespace.get(key[:2], 0) + units > cap:
            return EXHAUSTED_BY[LimitedBy.NAMESPACE]
    pool.lease(key, (units, _tick(now + (pool.per_s or lease_s)), now, owner))
    pool.count(key, units)
    return GRANTED


def _exhausted_until(pool: _Pool, now: float) -> Allocation:
    """Refuse with the earliest time at which a rate pool may grant again."""
    over = (min(pool.ending, default=0) + 1) / TICKS_PER_S
    return Allocation(AllocationStatus.EXHAUSTED, LimitedBy.POOL, max(1 / TICKS_PER_S, over - now))


def _is_of_other_owner(holding: Holding | None, owner: str) -> bool:
    return holding is not None and bool(owner and holding[3]) and holding[3] != owner


def _release(pool: _Pool, key: TokenKey) -> bool:
    holding = pool.callers.get(key)
    if holding is None:
        return False
    if pool.per_s is None:  # tokens of a rate pool count until their time is over
        del pool.callers[key]
        pool.unlease(key, holding)
        pool.count(key, -holding[0])
    return True


def _hold_for_job(pool: _Pool, claim: JobToken, now: float) -> None:
    key = (claim.project, claim.domain, claim.job)
    pool.jobs[key] = (claim.units, 0, now, "")
    pool.count(key, claim.units)


def _holder(key: TokenKey, holding: Holding, job: str | None, now: float) -> TokenHolder:
    units, tick, since, owner = holding
    left_s = None if job is not None else max(0.0, tick / TICKS_PER_S - now)
    token = key[2].removeprefix(JOB_ID_PREFIX)
    job = token if token != key[2] else job
    return TokenHolder(token, units, key[0], key[1], owner, job=job, held_s=now - since, expires_in_s=left_s)


def _key(request: PoolTokenRequest) -> TokenKey:
    return (request.project, request.domain, request.token)


def _tick(at: float) -> int:
    return int(at * TICKS_PER_S) + 1
