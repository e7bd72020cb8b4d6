"""Route PENDING jobs again: a chore of the leader."""

from __future__ import annotations

from collections.abc import Collection

from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.placement.apply_decisions import apply_decisions
from switchyard.service.placement.evaluation import evaluate_changed
from switchyard.service.placement.route_budget import RouteBudget
from switchyard.service.reserve.token_queue import TokenReservations, TokenWaiter
from switchyard.service.reserve.token_reservations import split_off_token_waiters, take_tokens_of_waiters
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import jobs

PENDING_PAGE_MAX = 5000  # pending jobs read in one query


def route_pending(
    context: Context, leadership: Leadership, tokens: TokenReservations | None = None, budget: RouteBudget | None = None
) -> int:
    """Route every PENDING job that the budget admits. Returns how many jobs left that state.

    Jobs that need tokens come last, together, so that the tokens go out in fair order.
    """
    tokens = tokens or TokenReservations()
    decided_count, after = 0, ""
    waiters: list[tuple[TokenWaiter, Eligibility]] = []
    while True:
        with context.database.read() as tx:
            rows = jobs.job_list_routable(tx, after=after, limit=PENDING_PAGE_MAX)
            specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
        world = context.snapshots.world
        holding: frozenset[str] = frozenset()
        if not rows:
            eligibilities = take_tokens_of_waiters(context, tokens, waiters)
            holding = frozenset(job_id for job_id, _ in eligibilities)
        else:
            after = rows[-1].id
            changed = evaluate_changed(context, world, rows, specs, budget=budget)
            eligibilities = split_off_token_waiters(context, rows, changed, waiters)
        for first in range(0, len(eligibilities), ROUND_MAX):
            page = dict(eligibilities[first : first + ROUND_MAX])
            decided_count += _route_round(context, leadership, world, page, holding=holding)
        if not rows:
            return decided_count


def _route_round(
    context: Context,
    leadership: Leadership,
    world: World,
    eligibilities: dict[str, Eligibility],
    *,
    holding: Collection[str],
) -> int:
    ids = list(eligibilities)

    def apply(batch: Batch) -> int:
        return apply_decisions(
            context, batch, world, eligibilities=eligibilities, locked=jobs.job_lock(batch.tx, ids), holding=holding
        )

    return leadership.commit(context, apply, locks=ids)
