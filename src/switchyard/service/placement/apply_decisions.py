"""Write the router's decisions about PENDING jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from switchyard.model.cluster.poll import Report
from switchyard.model.cluster.verdict import Outcome, Plan
from switchyard.model.job.blocker import Blocker, change_blocked
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import ObservedState, assign, make_transition, reject
from switchyard.model.job.retry import Cause
from switchyard.model.rules.queue import Lane
from switchyard.route.router import REASONS_SHOWN_MAX, Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_spread import WAITS, free_from_cluster
from switchyard.service.lifecycle.arrays import drop_unleased_tasks, read_on_lost
from switchyard.service.lifecycle.chosen_sets import chosen_update
from switchyard.service.lifecycle.decision_history import (
    EarlierVerdicts,
    is_same_reason,
    record_wait_reason,
    thin_wait_events,
)
from switchyard.service.lifecycle.retry_grants import Rules, grant_retry, grant_update
from switchyard.service.lifecycle.transitions import (
    life_of,
    read_avoided_clusters,
    record_step,
    refused_clusters,
)
from switchyard.service.placement.decision import JobNeeds, Placement, Reservations, decide, spread_of
from switchyard.service.placement.decision_counts import count_rerouted, count_set
from switchyard.service.placement.eligibility_cache import CachedEligibility, cache_eligibility
from switchyard.service.reserve.inquiries import ask_for_pending
from switchyard.service.reserve.queue_places import enqueue_for_place, leave_queue
from switchyard.service.reserve.quotes import quote_use_row
from switchyard.service.reserve.token_needs import needs_of_row
from switchyard.store.clusters import clusters, quotes
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

NO_PLACES: Mapping[str, int] = MappingProxyType({})


def apply_decisions(
    context: Context,
    batch: Batch,
    world: World,
    eligibilities: dict[str, Eligibility],
    locked: dict[str, JobRow],
    *,
    places: Mapping[str, int] = NO_PLACES,
    holding: Collection[str] = (),
) -> int:
    """Update PENDING jobs by their eligibilities. Returns how many jobs left that state.

    `places`: the places that jobs of limited queues got (give_places.py); other jobs of such queues wait for a place.
    `holding`: jobs that hold their tokens (token_reservations.py); other jobs that need tokens wait for them.
    """
    reserved = Reservations(places, holding)
    earlier_verdicts = EarlierVerdicts(batch.tx, locked.values())
    bodies: dict[str, str] = {}
    cached_by_eligibility: dict[int, CachedEligibility] = {}
    updates: dict[str, JobUpdate] = {}
    plans: list[tuple[JobRow, Plan]] = []
    quote_uses: list[quotes.QuoteUseRow] = []
    asking: list[tuple[JobRow, Eligibility]] = []
    decided_count = 0
    for job_id, row in locked.items():
        if row.state != State.PENDING.value or _is_stopped(row):
            continue
        eligibility = eligibilities[job_id]
        needs = JobNeeds(
            job_id,
            Lane.read(row.lane),
            needs_of_row(row) if context.tokens.pools.is_enforced else {},
            has_live_tasks=bool(row.tasks_live),
        )
        is_shown = eligibility.outcome is Outcome.REJECT
        placement, plan, _ = decide(context, eligibility, needs, reserved=reserved, is_shown=is_shown)
        if placement is Placement.QUEUE:
            updates[job_id] = enqueue_for_place(batch, row)
            continue
        if placement is Placement.REJECT and (left := leave_removed_cluster(batch, world, row)) is not None:
            updates |= {job_id: left} if left else {}
            decided_count += left.state is not UNSET
            continue
        if placement is Placement.WAIT_TOKENS:
            batch.topics.add(Topic.PENDING)
        update = _decision_update(
            context, batch, world, row, plan=plan, placement=placement, earlier_verdicts=earlier_verdicts
        )
        if placement is Placement.ASSIGN and (row.array is not None or eligibility.sets is not None):
            update = update.then(_lessees_update(context, batch, world, row, eligibility=eligibility, plan=plan))
        update = leave_queue(row, places.get(job_id)).then(update)
        if placement is Placement.ASK_QUOTES:
            asking.append((row, eligibility))
            update = replace(update, blocked=Blocker.QUOTES.value)
        cached = cached_by_eligibility.get(id(eligibility))
        if cached is None:
            cached = cached_by_eligibility[id(eligibility)] = cache_eligibility(eligibility)
        bodies[cached.verdicts_hash] = cached.verdicts_body
        # An array that began says nothing about a later quote.
        if eligibility.quoted and plan.chosen is not None and row.started_us is None:
            cluster_id = world.by_name[plan.chosen].id
            quote_uses.append(quote_use_row(job_id, eligibility, plan.chosen, cluster_id, now_us=batch.now_us))
        updates[job_id] = replace(update, plan_hash=cached.verdicts_hash)
        plans.append((row, plan))
        decided_count += plan.outcome != Outcome.HOLD
    count_rerouted(context.tally, batch, plans)
    jobs.verdicts_put(batch.tx, bodies, at_us=batch.now_us)
    jobs.job_update_many(batch.tx, updates)
    quotes.use_put(batch.tx, quote_uses)
    ask_for_pending(batch, asking, world, wait_us=context.selections.quote_wait_us)
    thin_wait_events(batch, (job_id for job_id, update in updates.items() if update.state is UNSET))
    return decided_count


def _is_stopped(row: JobRow) -> bool:
    """Return whether the job was held or quarantined between the read and the lock."""
    blockers = set((row.blocked or "").split(",")) - {"", Blocker.QUEUE, Blocker.QUOTES}
    return bool(blockers)


def _decision_update(
    context: Context,
    batch: Batch,
    world: World,
    row: JobRow,
    *,
    plan: Plan,
    placement: Placement,
    earlier_verdicts: EarlierVerdicts,
) -> JobUpdate:
    """Return the update of one PENDING job, and record its event."""
    life = life_of(row)
    if placement is Placement.REJECT and is_refused_everywhere(plan):
        return end_refused_job(batch, world, row, lambda: context.snapshots.policy)
    if placement is Placement.REJECT and row.retried is not None:  # it has run: it is not rejected, it has failed
        return _failed_update(batch, row, f"its next attempt cannot run: {plan.reason}")
    if placement is Placement.REJECT:
        step = reject(life, plan.reason)
        record_step(batch, row, step)
        ended = JobUpdate(state=step.life.state, reason=plan.reason, ended_us=batch.now_us)
        return ended.merged(drop_unleased_tasks(row))
    if placement is not Placement.ASSIGN:
        if not is_same_reason(row.reason, plan.reason):
            record_wait_reason(batch, row, plan.reason)
        return JobUpdate(reason=plan.reason)
    step = assign(life)
    assert plan.chosen is not None
    cluster_id = world.by_name[plan.chosen].id
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=step.life.attempt,
        fence=step.life.fence,
        cluster_id=cluster_id,
        reason=earlier_verdicts.cause(row, plan.chosen),
    )
    batch.clusters.add(cluster_id)
    return JobUpdate(
        state=step.life.state,
        reason="",
        cluster_id=cluster_id,
        attempt=step.life.attempt,
        fence=step.life.fence,
        assigned_us=batch.now_us,
        is_ready=row.array is None or bool(row.todo),
    )


def _failed_update(batch: Batch, row: JobRow, reason: str) -> JobUpdate:
    step = make_transition(life_of(row), State.FAILED, EventKind.FAILED, reason)
    record_step(batch, row, step)
    ended = JobUpdate(state=step.life.state, reason=reason, ended_us=batch.now_us)
    return ended.merged(drop_unleased_tasks(row, State.FAILED))


def _lessees_update(
    context: Context, batch: Batch, world: World, row: JobRow, *, eligibility: Eligibility, plan: Plan
) -> JobUpdate:
    """Return which clusters may lease an array, and which of its sets a job with alternatives has at each cluster."""
    update, spread = JobUpdate(), None
    if row.array is not None:
        spread = spread_of(context, eligibility, bounds=decode_bounds(row.bounds), world=world, plan=plan)
        batch.clusters.update(spread.split(",") if spread else ())
        update = JobUpdate(spread=spread)
    if eligibility.sets is None or plan.chosen is None:
        return update
    count_set(context.tally, batch, eligibility.sets, plan.chosen)
    return update.then(chosen_update(eligibility.sets, world, plan.chosen, spread))


def leave_removed_cluster(batch: Batch, world: World, row: JobRow) -> JobUpdate | None:
    """Return the update of an array together whose cluster is gone. None: it is no such array.

    With `on_lost` requeue, the rest may go to another cluster. Otherwise the rest fails, as a task of a removed agent.
    The update is empty if the cluster is missing only in the snapshot: then the array waits.
    """
    begun_on = decode_bounds(row.bounds).begun_on if row.array is not None else None
    if begun_on is None or begun_on in world.by_id:
        return None
    name = clusters.cluster_deleted_name(batch.tx, begun_on)
    if name is None:
        return JobUpdate()
    on_lost = read_on_lost(row)
    reason = f"{WAITS}cluster {name}, which had begun its tasks, was removed"
    if on_lost is OnLost.REQUEUE:
        batch.job_event(row, EventKind.REQUEUED, f"{reason}; on_lost is requeue: the rest may run on another cluster")
        batch.topics.add(Topic.PENDING)
        return JobUpdate(bounds=free_from_cluster(row.bounds), reason="")
    return _failed_update(batch, row, f"{reason}, and on_lost is {on_lost.value}: the rest failed")


def is_refused_everywhere(plan: Plan) -> bool:
    """Return whether the job is rejected because clusters refused it that could have run it."""
    return plan.outcome == Outcome.REJECT and any(verdict.step == "refused" for verdict in plan.verdicts)


def end_refused_job(batch: Batch, world: World, row: JobRow, rules: Rules) -> JobUpdate:
    """Return the update of a job that all clusters refused: a retry if its policy grants one, else its failure.

    An array retries as a whole: nothing of it began. If it fails, all tasks that no cluster took have failed.
    """
    reason, refusal = _refusal_reason(world, row), Report(row.id, row.fence, ObservedState.FAILED, cause=Cause.CLUSTER)
    grant = grant_retry(batch, replace(row, array=None), refusal, rules)
    if grant is not None:
        reason = grant.reason(reason)
        batch.job_event(row, EventKind.RETRYING, reason)
        avoided = read_avoided_clusters(row.avoid).items()
        tried_last = {cluster_id: replace(avoid, is_refused=False) for cluster_id, avoid in avoided}
        return replace(
            grant_update(batch, row, grant),
            reason=reason,
            wake_us=grant.due_us,
            blocked=change_blocked(row.blocked, add=Blocker.BACKOFF, remove=Blocker.QUEUE),
            avoid=msgspec.json.encode(tried_last).decode(),
        )
    return _failed_update(batch, row, reason)


def _refusal_reason(world: World, row: JobRow) -> str:
    """Return the reason of the one cluster that refused the job, or the reasons of several, with their names."""
    refusals = refused_clusters(row)
    if len(refusals) == 1:
        return refusals[0][1]
    names = {cluster_id: world.by_id[cluster_id].name for cluster_id, _ in refusals if cluster_id in world.by_id}
    shown = sorted(f"{names.get(cluster_id, '(removed)')}: {why}" for cluster_id, why in refusals)
    more = len(shown) - REASONS_SHOWN_MAX
    return "; ".join(shown[:REASONS_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
