"""The line of jobs that wait for tokens: who is next, who gets some now, and what the others hear.

Jobs of a limited queue are looked at with its places, all others together; yet all stand in one line. Who was refused
when its group was looked at last keeps what it needs from those behind it in other groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any

import structlog

from switchyard.errors import NoSuchPool, Rebuilding, YardError
from switchyard.service.context import Context
from switchyard.service.token.pool_calls import note_lease
from switchyard.service.token.token_needs import needs_of_row
from switchyard.tokens.pools import JobToken, PoolStatus

log = structlog.get_logger()
# waiting jobs that are told who holds; what those behind them hear changes seldom, and is cheap so
HOLDERS_SHOWN_TO_MAX = 20
HOLDERS_SHOWN = 3
REFUSED_KEPT_MAX = 1000  # of one group that those of others are compared with
FIRST_REFUSALS_MAX = 100_000  # jobs whose first refusal is remembered
SERVED_LANES_MAX = 10_000  # whose last turn is remembered
NOT_ANSWERING = "the token pools do not answer"
OTHERS_FIRST = "others before it"

TokensByPool = dict[str, dict[str, JobToken]]  # namespace → job → what it holds


@dataclass(frozen=True, slots=True)
class TokenWaiter:
    """A job that could be assigned now, were it not for its tokens."""

    id: str
    project: str
    domain: str
    lane: str
    priority: int
    created_us: int
    reason: str  # why it waits, as it was told last
    needs: dict[str, int]


def token_waiter_of(row: Any) -> TokenWaiter:
    needs = needs_of_row(row)
    return TokenWaiter(row.id, row.project, row.domain, row.lane, row.priority, row.created_us, row.reason, needs)


@dataclass
class TokenReservations:
    """What the leader remembers between two rounds."""

    term: int | None = None
    held: TokensByPool = field(default_factory=lambda: defaultdict(dict))  # by jobs, as far as we took it
    settled: int = -1  # the version of the registry that the pools were told
    compare_us: int = 0  # when the pools are compared with the store next; this and the others on the steady clock
    served: dict[str, int] = field(default_factory=dict)  # lane → when it last got tokens, as a number that grows
    is_away: bool = True  # the pools did not answer in this round
    # By group, as it was looked at last: who was refused, with what is kept for each; and how many wait, by pool.
    ahead: dict[str, list[TokenWaiter]] = field(default_factory=dict)
    waiting: dict[str, Counter[str]] = field(default_factory=dict)
    asking: dict[str, int] = field(default_factory=dict)  # jobs that ask for quotes → until when their tokens are kept
    since: dict[str, int] = field(default_factory=dict)  # jobs that were refused → when first

    def waited_s(self, job: str, now_us: int) -> float:
        """How long it waited, now that it has its tokens."""
        while len(self.since) > FIRST_REFUSALS_MAX:  # cancelled, most of them: the oldest go
            del self.since[next(iter(self.since))]
        return max(0, now_us - self.since.pop(job, now_us)) / 1_000_000


@dataclass
class TokenRound:
    """One look at a group: a limited queue, by its name, or all that need no place. It may take several steps."""

    group: str = ""
    closed: dict[str, str] = field(default_factory=dict)  # namespace → why nobody gets more of it in this look
    kept: Counter[str] = field(default_factory=Counter)  # units that are kept for who was refused
    ahead: list[TokenWaiter] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    told: int = 0


@dataclass(frozen=True, slots=True)
class TokenRefusal:
    """`shut`: the namespace of which there is no more for those behind; none: it stands in nobody's way."""

    reason: str
    shut: str | None = None
    is_first: bool = False  # nobody before it was refused by this pool: all that it needs is kept for it


def grant_tokens(
    context: Context, care: TokenReservations, waiters: Sequence[TokenWaiter], look: TokenRound
) -> tuple[set[str], dict[str, str]]:
    """Of jobs that could be assigned: those that now hold their tokens, and of the others why not.

    In fair order, and nobody overtakes: who is refused stands before all others that need the same pool.
    """
    granted: set[str] = set()
    reasons: dict[str, str] = {}
    theirs = {each.id: each for group, some in care.ahead.items() if group != look.group for each in some}
    for waiter in waiters:
        theirs.pop(waiter.id, None)  # its queue has changed
    look.seen.update(waiter.id for waiter in waiters)
    kept = Counter(look.kept)
    for waiter in fair_order([*waiters, *theirs.values()], care.served):
        if waiter.id in theirs:
            kept.update(waiter.needs)
            continue
        refusal = _take_all(context, care, waiter, look.closed, kept)
        if refusal is None:
            granted.add(waiter.id)
            care.served[waiter.lane] = max(care.served.values(), default=0) + 1
        else:
            reasons[waiter.id] = _note_refusal(context, care, look, kept=kept, waiter=waiter, refusal=refusal)
    if len(care.served) > SERVED_LANES_MAX:
        care.served = dict(sorted(care.served.items(), key=lambda each: each[1])[-SERVED_LANES_MAX // 2 :])
    care.ahead[look.group], care.waiting[look.group] = look.ahead, look.waiting
    _count_waiting(context, care)
    return granted, reasons


def forget_groups(context: Context, care: TokenReservations, groups: Iterable[str]) -> None:
    """In these groups nobody waits for tokens any more, or nobody could be assigned."""
    for group in groups:
        care.ahead.pop(group, None)
        care.waiting.pop(group, None)
    _count_waiting(context, care)


def fair_order(waiters: Iterable[TokenWaiter], served: Mapping[str, int]) -> list[TokenWaiter]:
    """The highest priority first; of one priority each lane in turn, the one that was served longest ago first, so one
    project's thousand do not stand before another's one; of one lane the oldest first. Pure."""
    turns: Counter[tuple[int, str]] = Counter()
    placed: list[tuple[tuple[int, int, int, str], TokenWaiter]] = []
    for waiter in sorted(waiters, key=lambda each: each.id):
        turn = turns[waiter.priority, waiter.lane]
        turns[waiter.priority, waiter.lane] += 1
        placed.append(((-waiter.priority, turn, served.get(waiter.lane, 0), waiter.id), waiter))
    return [waiter for _, waiter in sorted(placed, key=lambda each: each[0])]


def return_tokens(context: Context, care: TokenReservations, namespace: str, claims: list[JobToken]) -> None:
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None or entry.per_s is not None:
        return
    try:
        context.tokens.pools.job_give(namespace, claims)
    except YardError as exc:  # whatever it is, the next comparison puts it right
        care.is_away = True
        log.warning("tokens not given back", namespace=namespace, error=exc.inner)


def impossible_reason(context: Context, needs: Mapping[str, int]) -> str | None:
    """Why no wait would help, as the pools are now: such a job must not keep those waiting who can be helped."""
    entries = context.snapshots.token_pools.entries
    for namespace, units in needs.items():
        entry = entries.get(namespace)
        if entry is None:
            return f"there is no token pool {namespace}"
        if units > entry.quota:
            return f"asks for {units} of {namespace}, which has {entry.quota} in all"
    return None


def are_tokens_free(context: Context, needs: Mapping[str, int]) -> bool:
    """Whether the pools have so much now, whoever waits for it."""
    try:
        standings = [(context.tokens.pools.stand(namespace), units) for namespace, units in needs.items()]
    except YardError:
        return False
    return all(standing.used + units <= standing.quota for standing, units in standings)


def _note_refusal(
    context: Context,
    care: TokenReservations,
    look: TokenRound,
    *,
    kept: Counter[str],
    waiter: TokenWaiter,
    refusal: TokenRefusal,
) -> str:
    """Note it in the line; what the job hears."""
    look.waiting.update(waiter.needs.keys())
    if waiter.id not in care.since:
        care.since[waiter.id] = context.steady_us()
        for namespace in waiter.needs if refusal.shut is None else (refusal.shut,):
            context.tally.token_refusals.add(namespace)
    if refusal.shut is None:
        return refusal.reason
    needs = waiter.needs if refusal.is_first else {refusal.shut: waiter.needs[refusal.shut]}
    if refusal.is_first:
        kept.update(needs)
        look.kept.update(needs)
    if len(look.ahead) < REFUSED_KEPT_MAX:
        look.ahead.append(replace(waiter, needs=needs))
    look.told += 1
    reason = refusal.reason if look.told <= HOLDERS_SHOWN_TO_MAX else f"{_usage_part(refusal.reason)}, {OTHERS_FIRST}"
    # Thousands may hear this: how much is in use at the moment is not worth telling them all.
    is_same = (
        reason.endswith(OTHERS_FIRST)
        and waiter.reason.endswith(OTHERS_FIRST)
        and _pool_and_quota(reason) == _pool_and_quota(waiter.reason)
    )
    return waiter.reason if is_same else reason


def _usage_part(reason: str) -> str:
    return reason.partition(", ")[0]


def _pool_and_quota(reason: str) -> tuple[str, str]:
    """The pool and its quota, of `NAMESPACE USED/QUOTA, …`."""
    namespace, _, use = _usage_part(reason).partition(" ")
    return namespace, use.partition("/")[2]


def _take_all(
    context: Context, care: TokenReservations, waiter: TokenWaiter, closed: dict[str, str], kept: Mapping[str, int]
) -> TokenRefusal | None:
    """All of a job's tokens, or none."""
    if all(waiter.id in care.held[namespace] for namespace in waiter.needs):
        return None  # of an array whose tasks run on, or while it asked for quotes
    if (why := impossible_reason(context, waiter.needs)) is not None:
        return TokenRefusal(why)
    if (shut := next((namespace for namespace in waiter.needs if namespace in closed), None)) is not None:
        return TokenRefusal(closed[shut], shut)
    taken: list[str] = []
    for namespace, units in waiter.needs.items():
        claim = JobToken(waiter.id, units, waiter.project, waiter.domain)
        why = None if waiter.id in care.held[namespace] else _take_one(context, care, namespace, claim, kept[namespace])
        if why is not None:
            closed[namespace] = why.replace(_asks_text(units), "", 1)
            for each in taken:
                return_tokens(context, care, each, [care.held[each].pop(waiter.id)])
            return TokenRefusal(why, namespace, is_first=True)
        care.held[namespace][waiter.id] = claim
        taken.append(namespace)
    _count_granted(context, care, waiter)
    return None


def _count_granted(context: Context, care: TokenReservations, waiter: TokenWaiter) -> None:
    waited_s, longest_s = care.waited_s(waiter.id, context.steady_us()), context.tokens.counts.waited_s
    for namespace in waiter.needs:
        context.tally.token_grants.add(namespace)
        context.tally.token_wait_s.add(waited_s, namespace)
        longest_s[namespace] = max(waited_s, longest_s.get(namespace, 0.0))


def _take_one(context: Context, care: TokenReservations, namespace: str, claim: JobToken, kept: int) -> str | None:
    """Why not. `kept`: units that are for those before it."""
    if care.is_away:
        return NOT_ANSWERING
    entry, pools = context.snapshots.token_pools.entries.get(namespace), context.tokens.pools
    if entry is not None and entry.per_s is not None:
        note_lease(context, namespace, entry.per_s)
    try:
        if kept:
            standing = pools.stand(namespace)
            if standing.used + claim.units <= standing.quota < standing.used + claim.units + kept:
                return f"{namespace} {standing.used}/{standing.quota}, {OTHERS_FIRST}"
        if pools.job_take(namespace, claim).is_granted:
            return None
        standing = pools.stand(namespace)
    except (NoSuchPool, Rebuilding):
        return f"the token pool {namespace} is rebuilding after a loss"
    except YardError as exc:
        care.is_away = True
        log.warning("token pools", error=exc.inner)
        return NOT_ANSWERING
    return _full_reason(care, namespace, standing, claim.units)


def _full_reason(care: TokenReservations, namespace: str, standing: PoolStatus, units: int) -> str:
    full = f"{namespace} {standing.used}/{standing.quota}"
    if standing.per_s is not None:
        return f"{full} in {standing.per_s} s"
    parts = [f"job {job}" for job in nsmallest(HOLDERS_SHOWN, care.held[namespace])]
    if standing.jobs > len(parts):
        parts.append(f"{standing.jobs - len(parts)} more")
    if standing.callers:
        parts.append(f"{standing.callers} caller{'s' if standing.callers > 1 else ''}")
    return f"{full}{_asks_text(units)}, held by {', '.join(parts) or 'nobody'}"


def _asks_text(units: int) -> str:
    return f" (asks {units})" if units > 1 else ""


def _count_waiting(context: Context, care: TokenReservations) -> None:
    total: Counter[str] = Counter()
    for some in care.waiting.values():
        total.update(some)
    context.tokens.counts.waiting = dict(total)
