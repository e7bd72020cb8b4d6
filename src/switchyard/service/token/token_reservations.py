"""Tokens of jobs: the leader takes them when a job is assigned, gives them back when it is not any more, and repairs.

Which jobs hold what is derived from the store: a job that needs tokens holds them from its assignment to its end. What
the pools know is made to agree with that, so nothing leaks, whoever was killed at whatever line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import structlog

from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.model.verdict import Plan
from switchyard.route.router import Eligibility
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.submit.queue_places import needs_place
from switchyard.service.token.token_needs import needs_of_row, token_wait_reason
from switchyard.service.token.token_queue import (
    TokenReservations,
    TokenRound,
    TokensByPool,
    TokenWaiter,
    grant_tokens,
    return_tokens,
    token_waiter_of,
)
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.store import events
from switchyard.store import token_pools as store
from switchyard.store.jobs import Row
from switchyard.tokens.pools import JobToken

log = structlog.get_logger()
TOKEN_HOLDING_STATES = frozenset({"ASSIGNED", "SUBMITTED", "RUNNING"})
JOBS_PAGE_MAX = 5000  # jobs read in one query
COMPARE_US = 30_000_000  # between two looks at all that the pools know
QUOTE_GRACE_US = 5_000_000  # after a job's quotes were due: its tokens are kept for it no longer
EPOCH_COUNTER = "token_epochs"  # counts how often what was granted became known anew; none: nothing was ever granted


def reconcile_tokens(context: Context, care: TokenReservations, *, term: int) -> None:
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
    live = _tokens_by_store(context, care)
    is_whole = pools.is_whole()
    if not is_whole or care.settled != context.snapshots.token_pools.version:
        care.settled = _settle_pools(context)
    if not is_whole:
        _restore(context, live)
    now_us = context.steady_us()
    if not is_whole or now_us >= care.compare_us:
        _compare(context, care, live)
        care.compare_us = now_us + COMPARE_US
    else:
        _give_back(context, care, live)
    care.is_away = False


def split_off_token_waiters(
    context: Context,
    rows: Sequence[Row],
    moving: list[tuple[str, Eligibility]],
    waiters: list[tuple[TokenWaiter, Eligibility]],
) -> list[tuple[str, Eligibility]]:
    """Of rulings those that need no token; the others, which could be assigned, join the waiters."""
    if not context.tokens.pools.is_enforced:
        return moving
    queues = context.snapshots.laid.layout.queues
    # A job of a limited queue waits for its place first, and takes its tokens with it (give_places.py).
    needing = {row.id: row for row in rows if row.tokens is not None and not needs_place(queues, row.lane)}
    if not needing:
        return moving
    left: list[tuple[str, Eligibility]] = []
    for job_id, ruling in moving:
        if job_id in needing and _is_assignable_or_asks(ruling):
            waiters.append((token_waiter_of(needing[job_id]), ruling))
        else:
            left.append((job_id, ruling))
    return left


def _is_assignable_or_asks(ruling: Eligibility) -> bool:
    """Or could ask for quotes, which is in vain until it has its tokens."""
    return ruling.outcome == "assign" or bool(ruling.asks)


def needs_tokens(context: Context, row: Row) -> bool:
    return row.tokens is not None and context.tokens.pools.is_enforced


def hold_for_tokens(batch: Batch, row: Row, decided: Plan) -> Plan:
    """It could go, and waits for the leader to take its tokens."""
    batch.versions.add("pending")
    return msgspec.structs.replace(decided, outcome="hold", chosen=None, reason=token_wait_reason(needs_of_row(row)))


def take_tokens_of_queue(
    context: Context,
    care: TokenReservations,
    look: TokenRound,
    *,
    rows: Sequence[Row],
    rulings: Mapping[str, Eligibility],
    behind: Iterable[Row],
) -> dict[str, str]:
    """Of jobs that could be assigned as far as places go: those whose tokens are not to be had, with the reason.

    The others hold theirs now; one that is not assigned after all gives them back in the next round. `behind`: whose
    tokens are known not to be had, who only hear why.
    """
    if not context.tokens.pools.is_enforced:
        return {}
    needing = [
        row for row in rows if row.tokens is not None and row.id in rulings and _is_assignable_or_asks(rulings[row.id])
    ]
    waiters = [token_waiter_of(row) for row in (*needing, *behind)]
    if not waiters:
        return {}
    granted, reasons = grant_tokens(context, care, waiters, look)
    _keep_tokens_for_quotes(context, care, (job_id for job_id in granted if job_id in rulings and rulings[job_id].asks))
    return reasons


def take_tokens_of_waiters(
    context: Context, care: TokenReservations, waiters: Sequence[tuple[TokenWaiter, Eligibility]]
) -> list[tuple[str, Eligibility]]:
    """The rulings of those that hold their tokens now; of the others that they wait, where that reads another way."""
    if not waiters and not context.tokens.counts.waiting:
        return []
    granted, reasons = grant_tokens(context, care, [waiter for waiter, _ in waiters], TokenRound())
    _keep_tokens_for_quotes(
        context, care, (waiter.id for waiter, ruling in waiters if waiter.id in granted and ruling.asks)
    )
    held: dict[tuple[int, str], Eligibility] = {}
    found: list[tuple[str, Eligibility]] = []
    for waiter, ruling in waiters:
        if waiter.id in granted:
            found.append((waiter.id, ruling))
        elif (reason := reasons[waiter.id]) != waiter.reason:
            key = (id(ruling), reason)
            if key not in held:
                held[key] = replace(ruling, outcome="hold", reason=reason, asks=())
            found.append((waiter.id, held[key]))
    return found


def _keep_tokens_for_quotes(context: Context, care: TokenReservations, ids: Iterable[str]) -> None:
    """These have their tokens and ask for quotes: they keep them until they can go by what is quoted."""
    until_us = context.steady_us() + context.selections.quote_wait_us + QUOTE_GRACE_US
    care.asking |= dict.fromkeys(ids, until_us)


def _tokens_by_store(context: Context, care: TokenReservations) -> TokensByPool:
    """What jobs hold, by the store; and what is kept for those that ask for quotes."""
    live: TokensByPool = defaultdict(dict)
    now_us = context.steady_us()
    care.asking = {job: until_us for job, until_us in care.asking.items() if until_us > now_us}
    after = ""
    while True:
        with context.database.read() as tx:
            rows = store.job_needing_tokens(tx, after=after, limit=JOBS_PAGE_MAX)
        for row in rows:
            is_live = row.state in TOKEN_HOLDING_STATES or row.tasks_live
            if not is_live and row.id not in care.asking:
                continue
            try:
                needs = needs_of_row(row)
            except UNREADABLE_ERRORS as exc:
                log_unreadable("jobs", row.id, f"column tokens or array: {exc}")
                continue
            for namespace, units in needs.items():
                if is_live or row.id in care.held[namespace]:
                    live[namespace][row.id] = JobToken(row.id, units, row.project, row.domain)
        if len(rows) < JOBS_PAGE_MAX:
            return live
        after = rows[-1].id


def _settle_pools(context: Context) -> int:
    """Every pool of the registry is as the registry says."""
    registry = context.snapshots.token_pools
    for namespace, entry in registry.entries.items():
        free_in_s = context.tokens.leases_end_in_s(entry.leased_until_us - context.now_us(), entry.per_s)
        context.tokens.pools.settle(namespace, entry.quota, entry.per_s, free_in_s=free_in_s)
    return registry.version


def _restore(context: Context, live: TokensByPool) -> None:
    """The pools have lost what was granted, or may have: what jobs hold comes from the store, callers' leases pass."""
    registry = context.snapshots.token_pools.entries
    for namespace, claims in live.items():
        if namespace in registry and registry[namespace].per_s is None:
            context.tokens.pools.job_restore(namespace, claims.values())

    def apply(batch: Batch) -> int:
        return events.counter_take(batch.tx, EPOCH_COUNTER, 1)

    # Noted before anything can be granted: should we end between the two, the next one only waits in vain.
    is_first = context.committer.call(apply) <= 1
    is_kept = context.tokens.pools.begin(is_first=is_first)
    log.info("token pools open", pools=len(registry), jobs=sum(map(len, live.values())), is_kept=is_kept)


def _give_back(context: Context, care: TokenReservations, live: TokensByPool) -> None:
    """What the jobs we took tokens for hold no more."""
    for namespace, claims in care.held.items():
        over = [claim for job, claim in claims.items() if job not in live.get(namespace, {})]
        if over:
            return_tokens(context, care, namespace, over)
            for claim in over:
                del claims[claim.job]


def _compare(context: Context, care: TokenReservations, live: TokensByPool) -> None:
    """All that the pools know of jobs, against the store. A difference that is not a job's end is a repair."""
    pools, repairs = context.tokens.pools, context.tally.token_repairs
    for namespace, entry in context.snapshots.token_pools.entries.items():
        if pools.recount(namespace):
            repairs.add(namespace)
            log.warning("tokens recounted", namespace=namespace)
        if pools.stand(namespace).quota != entry.quota and _put_quota(context, namespace):
            repairs.add(namespace)
        if entry.per_s is not None:
            continue
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
            repairs.add(namespace, amount=repaired)
            log.warning("tokens repaired", namespace=namespace, given_back=len(over), restored=len(lacking))
        care.held[namespace] = dict(should)


def _put_quota(context: Context, namespace: str) -> bool:
    """The quota as the store has it now, for what is in memory may be older than what the pools were told."""
    with context.database.read() as tx:
        row = store.pool_get(tx, namespace)
    if row is None or context.tokens.pools.stand(namespace).quota == row.quota:
        return False
    context.tokens.pools.settle(namespace, row.quota, row.per_s)
    log.warning("quota put right", namespace=namespace, quota=row.quota)
    return True
