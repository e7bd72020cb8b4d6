"""The leader takes tokens when a job is assigned, returns them when the job ends, and repairs differences.

A job that needs tokens holds them from its assignment to its end, so the store says which jobs hold tokens. The
leader makes the pools agree with the store. So no token leaks, wherever a server is killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from switchyard.model.cluster.verdict import Outcome
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.queue import Lane
from switchyard.route.router import Eligibility
from switchyard.service.core.context import Context
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.batch import Batch
from switchyard.service.reserve.token_needs import needs_of_row
from switchyard.service.reserve.token_queue import (
    TokenCandidate,
    TokenReservations,
    TokenRound,
    TokensByPool,
    TokenWaiter,
    grant_tokens,
    return_tokens,
    token_waiter_of,
)
from switchyard.store.jobs import events
from switchyard.store.rules import token_pools as store
from switchyard.tokens.pools import JobToken

log = structlog.get_logger()
TOKEN_HOLDING_STATES = frozenset({"ASSIGNED", "SUBMITTED", "RUNNING"})
JOBS_PAGE_MAX = 5000  # jobs read in one query
COMPARE_US = 30_000_000  # interval between full comparisons of pools and store
QUOTE_GRACE_US = 5_000_000  # a job keeps its tokens this long after its quotes were due
EPOCH_COUNTER = "token_epochs"  # counts restores of the pools; not set: no token was ever granted


def reconcile_tokens(context: Context, reservations: TokenReservations, *, term: int) -> None:
    """Make the pools agree with the store. Tokens of ended jobs are returned, lost tokens restored, repairs counted."""
    pools = context.tokens.pools
    if not pools.is_enforced:
        return
    was_unreachable, reservations.is_unreachable = reservations.is_unreachable, True  # until this round succeeds
    if reservations.term != term:
        reservations.term, reservations.claims = term, defaultdict(dict)
        was_unreachable = True
    if was_unreachable:
        pools.lead(f"{term}")
        reservations.next_compare_us, reservations.registry_version = 0, -1
    live = _tokens_by_store(context, reservations)
    is_whole = pools.is_whole()
    if not is_whole or reservations.registry_version != context.snapshots.token_pools.version:
        reservations.registry_version = _settle_pools(context)
    if not is_whole:
        _restore(context, live)
    now_us = context.steady_us()
    if not is_whole or now_us >= reservations.next_compare_us:
        _compare(context, reservations, live)
        reservations.next_compare_us = now_us + COMPARE_US
    else:
        _give_back(context, reservations, live)
    reservations.is_unreachable = False


def split_off_token_waiters(
    context: Context,
    rows: Sequence[TokenCandidate],
    moving: list[tuple[str, Eligibility]],
    waiters: list[tuple[TokenWaiter, Eligibility]],
) -> list[tuple[str, Eligibility]]:
    """Return the jobs that need no tokens now. Other jobs that have a cluster are added to `waiters`."""
    if not context.tokens.pools.is_enforced:
        return moving
    queues = context.snapshots.laid.layout.queues
    # A job of a limited queue takes its tokens together with its place (give_places.py).
    needing = {row.id: row for row in rows if row.tokens is not None and not Lane.read(row.lane).needs_place(queues)}
    if not needing:
        return moving
    without_tokens: list[tuple[str, Eligibility]] = []
    for job_id, eligibility in moving:
        if job_id in needing and _is_assignable_or_asks(eligibility):
            waiters.append((token_waiter_of(needing[job_id]), eligibility))
        else:
            without_tokens.append((job_id, eligibility))
    return without_tokens


def _is_assignable_or_asks(eligibility: Eligibility) -> bool:
    """Return whether the job has a cluster or needs quotes. It asks for quotes only once it has its tokens."""
    return eligibility.outcome is Outcome.ASSIGN or bool(eligibility.asks)


def take_tokens_of_queue(
    context: Context,
    reservations: TokenReservations,
    token_round: TokenRound,
    *,
    rows: Sequence[TokenCandidate],
    eligibilities: Mapping[str, Eligibility],
    short_of_tokens: Iterable[TokenCandidate],
) -> dict[str, str]:
    """Take tokens for jobs that have a place. Returns the reason of each job that got no tokens.

    A job that got tokens but is not assigned returns them in the next round. `short_of_tokens`: jobs whose tokens are
    known to be unavailable; they only get a reason.
    """
    if not context.tokens.pools.is_enforced:
        return {}
    needing = [
        row
        for row in rows
        if row.tokens is not None and row.id in eligibilities and _is_assignable_or_asks(eligibilities[row.id])
    ]
    waiters = [token_waiter_of(row) for row in (*needing, *short_of_tokens)]
    if not waiters:
        return {}
    granted, reasons = grant_tokens(context, reservations, waiters, token_round)
    _keep_tokens_for_quotes(
        context, reservations, (job_id for job_id in granted if job_id in eligibilities and eligibilities[job_id].asks)
    )
    return reasons


def take_tokens_of_waiters(
    context: Context, reservations: TokenReservations, waiters: Sequence[tuple[TokenWaiter, Eligibility]]
) -> list[tuple[str, Eligibility]]:
    """Take tokens for waiting jobs. Returns the jobs that have them, and holds with a changed reason."""
    if not waiters and not context.tokens.counts.waiting:
        return []
    granted, reasons = grant_tokens(context, reservations, [waiter for waiter, _ in waiters], TokenRound())
    _keep_tokens_for_quotes(
        context,
        reservations,
        (waiter.id for waiter, eligibility in waiters if waiter.id in granted and eligibility.asks),
    )
    holds: dict[tuple[int, str], Eligibility] = {}
    eligibilities: list[tuple[str, Eligibility]] = []
    for waiter, eligibility in waiters:
        if waiter.id in granted:
            eligibilities.append((waiter.id, eligibility))
        elif (reason := reasons[waiter.id]) != waiter.reason:
            key = (id(eligibility), reason)
            if key not in holds:
                holds[key] = replace(eligibility, outcome=Outcome.HOLD, reason=reason, asks=())
            eligibilities.append((waiter.id, holds[key]))
    return eligibilities


def _keep_tokens_for_quotes(context: Context, reservations: TokenReservations, ids: Iterable[str]) -> None:
    """Let jobs that have their tokens keep them while they wait for quotes."""
    until_us = context.steady_us() + context.selections.quote_wait_us + QUOTE_GRACE_US
    reservations.kept_for_quotes |= dict.fromkeys(ids, until_us)


def _tokens_by_store(context: Context, reservations: TokenReservations) -> TokensByPool:
    """Return the tokens that jobs hold according to the store, and those of jobs that wait for quotes."""
    live: TokensByPool = defaultdict(dict)
    now_us = context.steady_us()
    reservations.kept_for_quotes = {
        job: until_us for job, until_us in reservations.kept_for_quotes.items() if until_us > now_us
    }
    after = ""
    while True:
        with context.database.read() as tx:
            rows = store.job_needing_tokens(tx, after=after, limit=JOBS_PAGE_MAX)
        for row in rows:
            is_live = row.state in TOKEN_HOLDING_STATES or row.tasks_live
            if not is_live and row.id not in reservations.kept_for_quotes:
                continue
            try:
                needs = needs_of_row(row)
            except UNREADABLE_ERRORS as exc:
                log_unreadable("jobs", row.id, f"column tokens or array: {exc}")
                continue
            for namespace, units in needs.items():
                if is_live or row.id in reservations.claims[namespace]:
                    live[namespace][row.id] = JobToken(row.id, units, row.project, row.domain)
        if len(rows) < JOBS_PAGE_MAX:
            return live
        after = rows[-1].id


def _settle_pools(context: Context) -> int:
    """Set quota and rate of every pool from the registry. Returns the version of the registry."""
    registry = context.snapshots.token_pools
    for namespace, entry in registry.entries.items():
        free_in_s = context.tokens.leases_end_in_s(entry.leased_until_us - context.now_us(), entry.per_s)
        context.tokens.pools.settle(namespace, entry.quota, entry.per_s, free_in_s=free_in_s)
    return registry.version


def _restore(context: Context, live: TokensByPool) -> None:
    """Restore pools that may have lost their grants. Job tokens come from the store; leases of callers run out."""
    registry = context.snapshots.token_pools.entries
    for namespace, claims in live.items():
        if namespace in registry and registry[namespace].per_s is None:
            context.tokens.pools.job_restore(namespace, claims.values())

    def apply(batch: Batch) -> int:
        return events.counter_take(batch.tx, EPOCH_COUNTER, 1)

    # Count before any grant. If this server ends in between, the next leader only waits without need.
    is_first = context.committer.call(apply) <= 1
    is_kept = context.tokens.pools.begin(is_first=is_first)
    log.info("token pools open", pools=len(registry), jobs=sum(map(len, live.values())), is_kept=is_kept)


def _give_back(context: Context, reservations: TokenReservations, live: TokensByPool) -> None:
    """Return the tokens that this leader took for jobs that no longer hold them."""
    for namespace, claims in reservations.claims.items():
        ended = [claim for job, claim in claims.items() if job not in live.get(namespace, {})]
        if ended:
            return_tokens(context, reservations, namespace, ended)
            for claim in ended:
                del claims[claim.job]


def _compare(context: Context, reservations: TokenReservations, live: TokensByPool) -> None:
    """Make the job tokens of all pools equal to the store. Differences that no job's end explains are repairs."""
    pools, repairs = context.tokens.pools, context.tally.token_repairs
    for namespace, entry in context.snapshots.token_pools.entries.items():
        if pools.recount(namespace):
            repairs.add(namespace)
            log.warning("tokens recounted", namespace=namespace)
        if pools.stand(namespace).quota != entry.quota and _put_quota(context, namespace):
            repairs.add(namespace)
        if entry.per_s is not None:
            continue
        actual, expected = pools.jobs(namespace), live.get(namespace, {})
        surplus = [claim for job, claim in actual.items() if job not in expected]
        missing = [claim for job, claim in expected.items() if job not in actual]
        if surplus:
            pools.job_give(namespace, surplus)
        if missing:
            pools.job_restore(namespace, missing)
        own = reservations.claims.get(namespace, {})
        repaired = len(missing) + sum(claim.job not in own for claim in surplus)
        if repaired:
            repairs.add(namespace, amount=repaired)
            log.warning("tokens repaired", namespace=namespace, given_back=len(surplus), restored=len(missing))
        reservations.claims[namespace] = dict(expected)


def _put_quota(context: Context, namespace: str) -> bool:
    """Set the quota to the stored one, as this server's snapshot may be stale. Returns whether it differed."""
    with context.database.read() as tx:
        row = store.pool_get(tx, namespace)
    if row is None or context.tokens.pools.stand(namespace).quota == row.quota:
        return False
    context.tokens.pools.settle(namespace, row.quota, row.per_s)
    log.warning("quota corrected", namespace=namespace, quota=row.quota)
    return True
