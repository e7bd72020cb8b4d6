"""The queue of jobs that wait for tokens.

Jobs of a limited queue are handled with that queue (a group), all others as one group. Units refused to a job in one
group stay reserved for it against later jobs of other groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Protocol

import structlog

from switchyard.errors import NoSuchPool, Rebuilding, YardError
from switchyard.service.core.context import Context
from switchyard.service.reserve.pool_type import note_lease
from switchyard.service.reserve.token_needs import TokenNeed, needs_of_row
from switchyard.tokens.pools import JobToken, PoolStatus

log = structlog.get_logger()
# The first waiting jobs of a round see the holders in their reason. Reasons of later jobs are short and change seldom.
HOLDERS_SHOWN_TO_MAX = 20
HOLDERS_SHOWN = 3
REFUSED_KEPT_MAX = 1000  # refused jobs remembered per group
FIRST_REFUSALS_MAX = 100_000  # jobs whose first refusal is remembered
SERVED_LANES_MAX = 10_000  # lanes whose last grant is remembered
NOT_ANSWERING = "the token pools do not answer"
OTHERS_FIRST = "others before it"

TokensByPool = dict[str, dict[str, JobToken]]  # namespace → job id → its tokens


@dataclass(frozen=True, slots=True)
class TokenWaiter:
    """A job that needs only its tokens to be assigned."""

    id: str
    project: str
    domain: str
    lane: str
    priority: int
    created_us: int
    reason: str  # the stored reason
    needs: dict[str, int]


class TokenCandidate(TokenNeed, Protocol):
    """The columns of a stored job that the token queue needs."""

    @property
    def id(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def lane(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def created_us(self) -> int: ...
    @property
    def reason(self) -> str: ...


def token_waiter_of(row: TokenCandidate) -> TokenWaiter:
    needs = needs_of_row(row)
    return TokenWaiter(row.id, row.project, row.domain, row.lane, row.priority, row.created_us, row.reason, needs)


@dataclass
class TokenReservations:
    """The leader's token state between rounds. All times are on the steady clock."""

    term: int | None = None
    claims: TokensByPool = field(default_factory=lambda: defaultdict(dict))  # tokens that this leader took for jobs
    registry_version: int = -1  # version of the registry that the pools have
    next_compare_us: int = 0  # when the pools are next compared with the store
    served: dict[str, int] = field(default_factory=dict)  # lane → number of its last grant; the number only grows
    is_unreachable: bool = True  # the pools did not answer in this round
    refused_by_group: dict[str, list[TokenWaiter]] = field(default_factory=dict)  # in the group's last round
    waiting_by_group: dict[str, Counter[str]] = field(default_factory=dict)  # group → waiting jobs per pool
    kept_for_quotes: dict[str, int] = field(default_factory=dict)  # job that waits for quotes → end of its reservation
    first_refused_us: dict[str, int] = field(default_factory=dict)  # job → time of its first refusal

    def end_wait(self, job: str, now_us: int) -> float:
        """Return how many seconds the job waited for the tokens it now has, and forget the job."""
        while len(self.first_refused_us) > FIRST_REFUSALS_MAX:  # mostly cancelled jobs; drop the oldest
            del self.first_refused_us[next(iter(self.first_refused_us))]
        return max(0, now_us - self.first_refused_us.pop(job, now_us)) / 1_000_000


@dataclass
class TokenRound:
    """One round over a group: a limited queue by its name, or all jobs without one. It may take several steps."""

    group: str = ""
    exhausted: dict[str, str] = field(default_factory=dict)  # namespace → why this round grants no more of its units
    reserved: Counter[str] = field(default_factory=Counter)  # units reserved for refused jobs, by namespace
    refused: list[TokenWaiter] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)  # waiting jobs by namespace
    seen: set[str] = field(default_factory=set)
    refusal_count: int = 0


@dataclass(frozen=True, slots=True)
class TokenRefusal:
    """Why a job got no tokens. `pool`: the exhausted pool; None if the job can never get its tokens."""

    reason: str
    pool: str | None = None
    is_first: bool = False  # the first job that this pool refused: all units it needs are reserved for it


def grant_tokens(
    context: Context, reservations: TokenReservations, waiters: Sequence[TokenWaiter], token_round: TokenRound
) -> tuple[set[str], dict[str, str]]:
    """Take tokens for jobs in fair order. Returns the jobs that hold their tokens, and the reasons of all others.

    No job overtakes: units needed by a refused job stay reserved for it against later jobs.
    """
    granted: set[str] = set()
    reasons: dict[str, str] = {}
    other_groups = [refused for group, refused in reservations.refused_by_group.items() if group != token_round.group]
    refused_elsewhere = {waiter.id: waiter for refused in other_groups for waiter in refused}
    for waiter in waiters:
        refused_elsewhere.pop(waiter.id, None)  # its queue has changed
    token_round.seen.update(waiter.id for waiter in waiters)
    reserved = Counter(token_round.reserved)
    for waiter in fair_order([*waiters, *refused_elsewhere.values()], reservations.served):
        if waiter.id in refused_elsewhere:
            reserved.update(waiter.needs)
            continue
        refusal = _take_all(context, reservations, waiter, token_round.exhausted, reserved)
        if refusal is None:
            granted.add(waiter.id)
            reservations.served[waiter.lane] = max(reservations.served.values(), default=0) + 1
        else:
            reasons[waiter.id] = _note_refusal(
                context, reservations, token_round, reserved=reserved, waiter=waiter, refusal=refusal
            )
    if len(reservations.served) > SERVED_LANES_MAX:
        by_grant = sorted(reservations.served.items(), key=lambda entry: entry[1])
        reservations.served = dict(by_grant[-SERVED_LANES_MAX // 2 :])
    reservations.refused_by_group[token_round.group] = token_round.refused
    reservations.waiting_by_group[token_round.group] = token_round.waiting
    _count_waiting(context, reservations)
    return granted, reasons


def forget_groups(context: Context, reservations: TokenReservations, groups: Iterable[str]) -> None:
    """Forget the refused and waiting jobs of these groups."""
    for group in groups:
        reservations.refused_by_group.pop(group, None)
        reservations.waiting_by_group.pop(group, None)
    _count_waiting(context, reservations)


def fair_order(waiters: Iterable[TokenWaiter], served: Mapping[str, int]) -> list[TokenWaiter]:
    """Return the waiters by priority; within a priority, lanes take turns, and each lane goes by age.

    The lane served longest ago goes first. So a project with one job does not wait behind a thousand of another.
    """
    lane_counts: Counter[tuple[int, str]] = Counter()
    ranked: list[tuple[tuple[int, int, int, str], TokenWaiter]] = []
    for waiter in sorted(waiters, key=lambda waiting: waiting.id):
        position = lane_counts[waiter.priority, waiter.lane]
        lane_counts[waiter.priority, waiter.lane] += 1
        ranked.append(((-waiter.priority, position, served.get(waiter.lane, 0), waiter.id), waiter))
    return [waiter for _, waiter in sorted(ranked, key=lambda entry: entry[0])]


def return_tokens(context: Context, reservations: TokenReservations, namespace: str, claims: list[JobToken]) -> None:
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None or entry.per_s is not None:
        return
    try:
        context.tokens.pools.job_give(namespace, claims)
    except YardError as exc:  # the next comparison with the store returns them
        reservations.is_unreachable = True
        log.warning("tokens not given back", namespace=namespace, error=exc.inner)


def impossible_reason(context: Context, needs: Mapping[str, int]) -> str | None:
    """Return why the present quotas can never grant these needs, or None. Such a job must not hold up other jobs."""
    entries = context.snapshots.token_pools.entries
    for namespace, units in needs.items():
        entry = entries.get(namespace)
        if entry is None:
            return f"there is no token pool {namespace}"
        if units > entry.quota:
            return f"asks for {units} of {namespace}, which has {entry.quota} in all"
    return None


def are_tokens_free(context: Context, needs: Mapping[str, int]) -> bool:
    """Return whether the pools have these units free now. Waiting jobs do not count."""
    try:
        statuses = [(context.tokens.pools.stand(namespace), units) for namespace, units in needs.items()]
    except YardError:
        return False
    return all(status.used + units <= status.quota for status, units in statuses)


def _note_refusal(
    context: Context,
    reservations: TokenReservations,
    token_round: TokenRound,
    *,
    reserved: Counter[str],
    waiter: TokenWaiter,
    refusal: TokenRefusal,
) -> str:
    """Record the refusal and return the reason to show for the job."""
    token_round.waiting.update(waiter.needs.keys())
    if waiter.id not in reservations.first_refused_us:
        reservations.first_refused_us[waiter.id] = context.steady_us()
        for namespace in waiter.needs if refusal.pool is None else (refusal.pool,):
            context.tally.token_refusals.add(namespace)
    if refusal.pool is None:
        return refusal.reason
    needs = waiter.needs if refusal.is_first else {refusal.pool: waiter.needs[refusal.pool]}
    if refusal.is_first:
        reserved.update(needs)
        token_round.reserved.update(needs)
    if len(token_round.refused) < REFUSED_KEPT_MAX:
        token_round.refused.append(replace(waiter, needs=needs))
    token_round.refusal_count += 1
    is_shown = token_round.refusal_count <= HOLDERS_SHOWN_TO_MAX
    reason = refusal.reason if is_shown else f"{_usage_part(refusal.reason)}, {OTHERS_FIRST}"
    # Thousands of jobs may have this reason: do not rewrite it when only the units in use have changed.
    is_same = (
        reason.endswith(OTHERS_FIRST)
        and waiter.reason.endswith(OTHERS_FIRST)
        and _pool_and_quota(reason) == _pool_and_quota(waiter.reason)
    )
    return waiter.reason if is_same else reason


def _usage_part(reason: str) -> str:
    return reason.partition(", ")[0]


def _pool_and_quota(reason: str) -> tuple[str, str]:
    """Return the pool and its quota from a reason of the form `NAMESPACE USED/QUOTA, …`."""
    namespace, _, use = _usage_part(reason).partition(" ")
    return namespace, use.partition("/")[2]


def _take_all(
    context: Context,
    reservations: TokenReservations,
    waiter: TokenWaiter,
    exhausted: dict[str, str],
    reserved: Mapping[str, int],
) -> TokenRefusal | None:
    """Take all tokens of a job, or none and return the refusal."""
    if all(waiter.id in reservations.claims[namespace] for namespace in waiter.needs):
        return None  # an array with running tasks, or a job that kept its tokens while it waited for quotes
    if (reason := impossible_reason(context, waiter.needs)) is not None:
        return TokenRefusal(reason)
    if (pool := next((namespace for namespace in waiter.needs if namespace in exhausted), None)) is not None:
        return TokenRefusal(exhausted[pool], pool)
    taken: list[str] = []
    for namespace, units in waiter.needs.items():
        claim = JobToken(waiter.id, units, waiter.project, waiter.domain)
        is_held = waiter.id in reservations.claims[namespace]
        reason = None if is_held else _take_one(context, reservations, namespace, claim, reserved[namespace])
        if reason is not None:
            exhausted[namespace] = reason.replace(_asks_text(units), "", 1)
            for pool in taken:
                return_tokens(context, reservations, pool, [reservations.claims[pool].pop(waiter.id)])
            return TokenRefusal(reason, namespace, is_first=True)
        reservations.claims[namespace][waiter.id] = claim
        taken.append(namespace)
    _count_granted(context, reservations, waiter)
    return None


def _count_granted(context: Context, reservations: TokenReservations, waiter: TokenWaiter) -> None:
    waited_s, longest_s = reservations.end_wait(waiter.id, context.steady_us()), context.tokens.counts.waited_s
    for namespace in waiter.needs:
        context.tally.token_grants.add(namespace)
        context.tally.token_wait_s.add(waited_s, namespace)
        longest_s[namespace] = max(waited_s, longest_s.get(namespace, 0.0))


def _take_one(
    context: Context, reservations: TokenReservations, namespace: str, claim: JobToken, reserved: int
) -> str | None:
    """Take tokens of one pool. Returns None, or why not. `reserved`: units reserved for jobs before this job."""
    if reservations.is_unreachable:
        return NOT_ANSWERING
    entry, pools = context.snapshots.token_pools.entries.get(namespace), context.tokens.pools
    if entry is not None and entry.per_s is not None:
        note_lease(context, namespace, entry.per_s)
    try:
        if reserved:
            status = pools.stand(namespace)
            if status.used + claim.units <= status.quota < status.used + claim.units + reserved:
                return f"{namespace} {status.used}/{status.quota}, {OTHERS_FIRST}"
        if pools.job_take(namespace, claim).is_granted:
            return None
        status = pools.stand(namespace)
    except (NoSuchPool, Rebuilding):
        return f"the token pool {namespace} is rebuilding after a loss"
    except YardError as exc:
        reservations.is_unreachable = True
        log.warning("token pools do not answer", error=exc.inner)
        return NOT_ANSWERING
    return _full_reason(reservations, namespace, status, claim.units)


def _full_reason(reservations: TokenReservations, namespace: str, status: PoolStatus, units: int) -> str:
    usage = f"{namespace} {status.used}/{status.quota}"
    if status.per_s is not None:
        return f"{usage} in {status.per_s} s"
    parts = [f"job {job}" for job in nsmallest(HOLDERS_SHOWN, reservations.claims[namespace])]
    if status.jobs > len(parts):
        parts.append(f"{status.jobs - len(parts)} more")
    if status.callers:
        parts.append(f"{status.callers} caller{'s' if status.callers > 1 else ''}")
    return f"{usage}{_asks_text(units)}, held by {', '.join(parts) or 'nobody'}"


def _asks_text(units: int) -> str:
    return f" (asks {units})" if units > 1 else ""


def _count_waiting(context: Context, reservations: TokenReservations) -> None:
    total: Counter[str] = Counter()
    for by_pool in reservations.waiting_by_group.values():
        total.update(by_pool)
    context.tokens.counts.waiting = dict(total)
