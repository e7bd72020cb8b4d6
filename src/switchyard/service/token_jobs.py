"""Tokens of jobs: the leader takes them when a job is assigned, gives them back when it is not any more, and repairs.

Which jobs hold what is derived from the store: a job that needs tokens holds them from its assignment to its end. What
the pools know is made to agree with that, so nothing leaks, whoever was killed at whatever line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import structlog

from switchyard.errors import NoSuchPool, Rebuilding, YardError
from switchyard.model.verdict import Plan
from switchyard.route.route import Ruling
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.limits import needs_place
from switchyard.service.token_needs import needs_of_row, why_tokens
from switchyard.service.tokens import note_lease
from switchyard.store import events
from switchyard.store import tokens as store
from switchyard.store.jobs import Row
from switchyard.tokens.pools import JobToken

log = structlog.get_logger()
LIVE = frozenset({"ASSIGNED", "SUBMITTED", "RUNNING"})
LOOK_MAX = 5000  # jobs read in one query
COMPARE_US = 30_000_000  # between two looks at all that the pools know
TOLD_MAX = 20  # waiting jobs that are told who holds; what those behind them hear changes seldom, and is cheap so
HOLDERS_TOLD = 3
EPOCHS = "token_epochs"  # counts how often what was granted became known anew; none: nothing was ever granted

Held = dict[str, dict[str, JobToken]]  # namespace → job → what it holds


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job that could be assigned now, were it not for its tokens."""

    id: str
    project: str
    domain: str
    lane: str
    priority: int
    created_us: int
    reason: str  # why it waits, as it was told last
    needs: dict[str, int]


@dataclass
class TokenCare:
    """What the leader remembers between two rounds."""

    term: int | None = None
    held: Held = field(default_factory=lambda: defaultdict(dict))  # by jobs, as far as we took it
    settled: int = -1  # the version of the registry that the pools were told
    compare_us: int = 0
    served: dict[str, int] = field(default_factory=dict)  # lane → when it last got tokens, as a number that grows
    is_away: bool = True  # the pools did not answer in this round


def tend(context: Context, care: TokenCare, *, term: int) -> None:
    """One round: what is over gives back, what was lost is restored, what differs is put right and counted."""
    pools = context.tokens.pools
    if not pools.is_enforced:
        return
    was_away, care.is_away = care.is_away, True  # until this round has gone through
    if care.term != term:
        care.term, care.held = term, defaultdict(dict)
        was_away = True
    if was_away:
        pools.lead(f"{term}")
        care.compare_us, care.settled = 0, -1
    live = _live(context)
    is_whole = pools.is_whole()
    if not is_whole or care.settled != context.snapshots.token_pools.version:
        care.settled = _settle(context)
    if not is_whole:
        _restore(context, live)
    now_us = context.now_us()
    if not is_whole or now_us >= care.compare_us:
        _compare(context, care, live)
        care.compare_us = now_us + COMPARE_US
    else:
        _give_back(context, care, live)
    care.is_away = False


def grant(context: Context, care: TokenCare, waiters: Sequence[Waiter]) -> tuple[set[str], dict[str, str]]:
    """Of jobs that could be assigned: those that now hold their tokens, and of the others why not.

    In fair order, and nobody overtakes: who is refused stands before all others that need the same pool.
    """
    granted: set[str] = set()
    reasons: dict[str, str] = {}
    closed: dict[str, str] = {}  # namespace → why nobody gets more of it in this round
    waiting: Counter[str] = Counter()
    care.served = {waiter.lane: care.served.get(waiter.lane, 0) for waiter in waiters}
    for waiter in fair_order(waiters, care.served):
        shut = next((namespace for namespace in waiter.needs if namespace in closed), None)
        if shut is None:
            shut = _take(context, care, waiter, closed)
        if shut is None:
            granted.add(waiter.id)
            care.served[waiter.lane] = max(care.served.values()) + 1
            continue
        waiting.update(waiter.needs.keys())
        is_told = len(reasons) < TOLD_MAX
        reasons[waiter.id] = closed[shut] if is_told else f"{closed[shut].partition(', held by')[0]}, others before it"
    context.tokens.counts.waiting = dict(waiting)
    return granted, reasons


def fair_order(waiters: Iterable[Waiter], served: Mapping[str, int]) -> list[Waiter]:
    """The highest priority first; of one priority each lane in turn, the one that was served longest ago first, so one
    project's thousand do not stand before another's one; of one lane the oldest first. Pure."""
    turns: Counter[tuple[int, str]] = Counter()
    placed: list[tuple[tuple[int, int, int, str], Waiter]] = []
    for waiter in sorted(waiters, key=lambda each: each.id):
        turn = turns[waiter.priority, waiter.lane]
        turns[waiter.priority, waiter.lane] += 1
        placed.append(((-waiter.priority, turn, served.get(waiter.lane, 0), waiter.id), waiter))
    return [waiter for _, waiter in sorted(placed, key=lambda each: each[0])]


def set_aside(
    context: Context, rows: Sequence[Row], moving: list[tuple[str, Ruling]], waiters: list[tuple[Waiter, Ruling]]
) -> list[tuple[str, Ruling]]:
    """Of rulings those that need no token; the others, which could be assigned, join the waiters."""
    if not context.tokens.pools.is_enforced:
        return moving
    queues = context.snapshots.laid.layout.queues
    # A job of a limited queue waits for its place first, and takes its tokens with it (places.py).
    needing = {row.id: row for row in rows if row.tokens is not None and not needs_place(queues, row.lane)}
    if not needing:
        return moving
    for job_id, ruling in moving:
        if job_id in needing and ruling.outcome == "assign":
            waiters.append((_waiter(needing[job_id]), ruling))
    return [(job_id, ruling) for job_id, ruling in moving if ruling.outcome != "assign" or job_id not in needing]


def needs_tokens(context: Context, row: Row) -> bool:
    return row.tokens is not None and context.tokens.pools.is_enforced


def without_tokens(batch: Batch, row: Row, decided: Plan) -> Plan:
    """It could go, and waits for the leader to take its tokens."""
    batch.versions.add("pending")
    return msgspec.structs.replace(decided, outcome="hold", chosen=None, reason=why_tokens(needs_of_row(row)))


def _waiter(row: Row) -> Waiter:
    needs = needs_of_row(row)
    return Waiter(row.id, row.project, row.domain, row.lane, row.priority, row.created_us, row.reason, needs)


def refused_tokens(
    context: Context, care: TokenCare, rows: Sequence[Row], rulings: Mapping[str, Ruling]
) -> dict[str, str]:
    """Of jobs that could be assigned as far as places go: those whose tokens are not to be had, with the reason.

    The others hold theirs now; one that is not assigned after all gives them back in the next round.
    """
    if not context.tokens.pools.is_enforced:
        return {}
    needing = [row for row in rows if row.tokens is not None and row.id in rulings]
    waiters = [_waiter(row) for row in needing if rulings[row.id].outcome == "assign"]
    return grant(context, care, waiters)[1] if waiters else {}


def with_tokens(
    context: Context, care: TokenCare, waiters: Sequence[tuple[Waiter, Ruling]]
) -> list[tuple[str, Ruling]]:
    """The rulings of those that hold their tokens now; of the others that they wait, where that reads another way."""
    if not waiters and not context.tokens.counts.waiting:
        return []
    granted, reasons = grant(context, care, [waiter for waiter, _ in waiters])
    held: dict[tuple[int, str], Ruling] = {}
    found: list[tuple[str, Ruling]] = []
    for waiter, ruling in waiters:
        if waiter.id in granted:
            found.append((waiter.id, ruling))
        elif (reason := reasons[waiter.id]) != waiter.reason:
            key = (id(ruling), reason)
            if key not in held:
                held[key] = replace(ruling, outcome="hold", reason=reason)
            found.append((waiter.id, held[key]))
    return found


def _take(context: Context, care: TokenCare, waiter: Waiter, closed: dict[str, str]) -> str | None:
    """All of a job's tokens, or none: then the namespace that had no more."""
    counts = context.tokens.counts
    taken: list[str] = []
    for namespace, units in waiter.needs.items():
        claim = JobToken(waiter.id, units, waiter.project, waiter.domain)
        why = _refusal(context, care, namespace, claim)
        if why is not None:
            closed[namespace] = why
            counts.refused[namespace] += 1
            for each in taken:
                _give(context, care, each, [care.held[each].pop(waiter.id)])
            return namespace
        care.held[namespace][waiter.id] = claim
        taken.append(namespace)
    waited_s = max(0, context.now_us() - waiter.created_us) / 1_000_000
    for namespace in waiter.needs:
        counts.granted[namespace] += 1
        counts.waited_s[namespace] = max(waited_s, counts.waited_s.get(namespace, 0.0))
    return None


def _refusal(context: Context, care: TokenCare, namespace: str, claim: JobToken) -> str | None:
    if care.is_away:
        return "the token pools do not answer"
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is not None and entry.per_s is not None:
        note_lease(context, namespace, entry.per_s)
    try:
        if context.tokens.pools.job_take(namespace, claim).is_granted:
            return None
        standing = context.tokens.pools.stand(namespace)
    except NoSuchPool as exc:
        return exc.detail
    except Rebuilding:
        return f"the token pool {namespace} is rebuilding after a loss"
    except YardError as exc:
        care.is_away = True
        log.warning("token pools", error=exc.inner)
        return "the token pools do not answer"
    full = f"{namespace} {standing.used}/{standing.quota}"
    if standing.per_s is not None:
        return f"{full} in {standing.per_s} s"
    asked = f" (asks {claim.units})" if claim.units > 1 else ""
    return f"{full}{asked}, held by {_holders(context, namespace, standing.callers)}"


def _holders(context: Context, namespace: str, callers: int) -> str:
    jobs = sorted(context.tokens.pools.jobs(namespace))
    parts = [f"job {job}" for job in jobs[:HOLDERS_TOLD]]
    if len(jobs) > HOLDERS_TOLD:
        parts.append(f"{len(jobs) - HOLDERS_TOLD} more")
    if callers:
        parts.append(f"{callers} caller{'s' if callers > 1 else ''}")
    return ", ".join(parts) or "nobody"


def _live(context: Context) -> Held:
    """What jobs hold, by the store."""
    live: Held = defaultdict(dict)
    after = ""
    while True:
        with context.database.read() as tx:
            rows = store.job_tokened(tx, after=after, limit=LOOK_MAX)
        for row in rows:
            if row.state not in LIVE and not row.tasks_live:
                continue
            for namespace, units in needs_of_row(row).items():
                live[namespace][row.id] = JobToken(row.id, units, row.project, row.domain)
        if len(rows) < LOOK_MAX:
            return live
        after = rows[-1].id


def _settle(context: Context) -> int:
    """Every pool of the registry is as the registry says."""
    registry = context.snapshots.token_pools
    for namespace, entry in registry.entries.items():
        free_in_s = max(0, entry.leased_until_us - context.now_us()) / 1_000_000
        context.tokens.pools.settle(namespace, entry.quota, entry.per_s, free_in_s=free_in_s)
    return registry.version


def _restore(context: Context, live: Held) -> None:
    """The pools have lost what was granted, or may have: what jobs hold comes from the store, callers' leases pass."""
    registry = context.snapshots.token_pools.entries
    for namespace, claims in live.items():
        if namespace in registry and registry[namespace].per_s is None:
            context.tokens.pools.job_restore(namespace, claims.values())

    def apply(batch: Batch) -> int:
        return events.counter_take(batch.tx, EPOCHS, 1)

    # Noted before anything can be granted: should we end between the two, the next one only waits in vain.
    is_first = context.committer.call(apply) <= 1
    is_kept = context.tokens.pools.begin(is_first=is_first)
    log.info("token pools open", pools=len(registry), jobs=sum(map(len, live.values())), is_kept=is_kept)


def _give_back(context: Context, care: TokenCare, live: Held) -> None:
    """What the jobs we took tokens for hold no more."""
    for namespace, claims in care.held.items():
        over = [claim for job, claim in claims.items() if job not in live.get(namespace, {})]
        if over:
            _give(context, care, namespace, over)
            for claim in over:
                del claims[claim.job]


def _compare(context: Context, care: TokenCare, live: Held) -> None:
    """All that the pools know of jobs, against the store. A difference that is not a job's end is a repair."""
    pools, counts = context.tokens.pools, context.tokens.counts
    for namespace, entry in context.snapshots.token_pools.entries.items():
        if entry.per_s is not None:
            continue
        if not pools.stand(namespace).is_sound:
            pools.recount(namespace)
            counts.repaired[namespace] += 1
        known, should = pools.jobs(namespace), live.get(namespace, {})
        over = [claim for job, claim in known.items() if job not in should]
        lacking = [claim for job, claim in should.items() if job not in known]
        if over:
            pools.job_give(namespace, over)
        if lacking:
            pools.job_restore(namespace, lacking)
        ours = care.held.get(namespace, {})
        repaired = len(lacking) + sum(claim.job not in ours for claim in over)
        if repaired:
            counts.repaired[namespace] += repaired
            log.warning("tokens repaired", namespace=namespace, given_back=len(over), restored=len(lacking))
        care.held[namespace] = dict(should)


def _give(context: Context, care: TokenCare, namespace: str, claims: list[JobToken]) -> None:
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None or entry.per_s is not None:
        return
    try:
        context.tokens.pools.job_give(namespace, claims)
    except YardError as exc:  # whatever it is, the next comparison puts it right
        care.is_away = True
        log.warning("tokens not given back", namespace=namespace, error=exc.inner)
