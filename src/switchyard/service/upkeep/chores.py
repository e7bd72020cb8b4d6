"""What one leader does for all replicas: route what waits, judge what fell silent, clean up; move_jobs.py is the rest.

Each chore is a function that does one bounded round and says how much it did; `server/background_loops.py` calls them.
Every transaction of a chore checks the leader's epoch, so that a leader that was paused and replaced changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from switchyard.model.job import JobSpec, OnLost
from switchyard.model.lifecycle import ObservedState, ReportAnswer, assign, mark_lost, reject
from switchyard.model.poll import Report
from switchyard.model.spill import opened_pools
from switchyard.model.task_states import live_positions
from switchyard.model.verdict import Plan
from switchyard.route.router import Eligibility, make_plan
from switchyard.route.world import World
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.decision_history import (
    EarlierVerdicts,
    is_same_reason,
    record_wait_reason,
    thin_wait_events,
)
from switchyard.service.job.jobs import avoided_clusters
from switchyard.service.quote.inquiries import BLOCKED_BY_QUOTES, quote_wait_columns
from switchyard.service.quote.quotes import QuoteWindow, quote_use_row
from switchyard.service.run.arrays import ArrayJob, BatchArrays
from switchyard.service.run.report import life_of, record_step, retry_due_us, step_columns
from switchyard.service.snapshots import missing_owner_reason, owner_of
from switchyard.service.submit.bounds import decode_bounds, evaluate_with_spill
from switchyard.service.submit.decision_counts import count_rerouted
from switchyard.service.submit.demands import demand_of_spec
from switchyard.service.submit.new_job import CachedEligibility, cache_eligibility
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE, enqueue_for_place, leave_queue_columns, needs_place
from switchyard.service.submit.select_cluster import select_or_hold
from switchyard.service.token.token_queue import TokenReservations, TokenWaiter
from switchyard.service.token.token_reservations import (
    hold_for_tokens,
    needs_tokens,
    split_off_token_waiters,
    take_tokens_of_waiters,
)
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.route_budget import RouteBudget
from switchyard.service.upkeep.wait_clock import waited_s
from switchyard.store import clusters, events, jobs, leases, quotes, ranges
from switchyard.store.clock_jumps import AMNESTY_COUNTER

NO_PLACES: Mapping[str, int] = MappingProxyType({})
ROUND_MAX = 500  # jobs per transaction of a chore
PENDING_PAGE_MAX = 5000  # waiting jobs looked at in one query
LOST_AFTER_S = 3600  # where a job's on_lost acts and it does not say when
KEYS_KEPT_US = 7 * 86_400_000_000


def route_pending(
    context: Context,
    leadership: Leadership,
    tokens: TokenReservations | None = None,
    budget: RouteBudget | None = None,
) -> int:
    """Take up every PENDING job again that the budget admits; how many left that state."""
    tokens = tokens or TokenReservations()
    done, after = 0, ""
    waiters: list[tuple[TokenWaiter, Eligibility]] = []
    while True:
        with context.database.read() as tx:
            rows = jobs.job_list_routable(tx, after=after, limit=PENDING_PAGE_MAX)
            specs = jobs.spec_get_many(tx, (row.spec_hash for row in rows))  # thousands of jobs often have one
        world = context.snapshots.world
        holding: frozenset[str] = frozenset()
        if not rows:
            moving = take_tokens_of_waiters(context, tokens, waiters)
            holding = frozenset(job_id for job_id, _ in moving)
        else:
            after = rows[-1].id
            changed = evaluate_changed(context, world, rows, specs, budget)
            moving = split_off_token_waiters(context, rows, changed, waiters)
        for first in range(0, len(moving), ROUND_MAX):
            some = dict(moving[first : first + ROUND_MAX])
            done += _route_round(context, leadership, world, some, holding=holding)
        if not rows:
            return done


def evaluate_changed(
    context: Context, world: World, rows: list[jobs.Row], specs: dict[str, str], budget: RouteBudget | None = None
) -> list[tuple[str, Eligibility]]:
    """The jobs for which something has changed, each with its ruling. Others are left for later by the budget."""
    budget = budget or RouteBudget(clock=lambda: 0.0)
    rulings: dict[tuple[object, ...], Eligibility] = {}
    moving: list[tuple[str, Eligibility]] = []
    for row in rows:
        if not budget.admits(row.owner_id, row.id):
            continue
        began_s = budget.now_s()
        key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled_of(row, context.now_us()))
        ruling = rulings.get(key)
        if ruling is None:
            ruling = rulings[key] = evaluate_again(context, world, row, specs[row.spec_hash])
        budget.spend(row.owner_id, row.id, began_s)
        if ruling.outcome != "hold" or not is_same_reason(row.reason, ruling.reason) or ruling.asks:
            moving.append((row.id, ruling))
    return moving


def _route_round(
    context: Context, leadership: Leadership, world: World, rulings: dict[str, Eligibility], *, holding: Collection[str]
) -> int:
    moving = list(rulings)

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        return apply_rulings(context, batch, world, rulings, jobs.job_lock(batch.tx, moving), holding=holding)

    return context.committer.call(apply, locks=moving)


def apply_rulings(
    context: Context,
    batch: Batch,
    world: World,
    rulings: dict[str, Eligibility],
    locked: dict[str, jobs.Row],
    *,
    places: Mapping[str, int] = NO_PLACES,
    holding: Collection[str] = (),
) -> int:
    """Change these PENDING jobs as their rulings say; how many left that state.

    `places`: what jobs of limited queues were given of them (give_places.py); without any they wait for some.
    `holding`: jobs that hold their tokens (token_reservations.py); one that needs some and has none waits for them.
    """
    queues = context.snapshots.laid.layout.queues
    before = EarlierVerdicts(batch.tx, locked.values())
    bodies: dict[str, str] = {}
    kept_of: dict[int, CachedEligibility] = {}
    changes: dict[str, dict[str, Any]] = {}
    counted: list[tuple[jobs.Row, Plan]] = []
    used: list[dict[str, Any]] = []
    moved = 0
    for job_id, row in locked.items():
        if _is_stopped(row):
            continue
        ruling = rulings[job_id]
        decided = make_plan(ruling, seed=job_id, is_shown=ruling.outcome == "reject")
        if decided.outcome == "assign" and job_id not in places and needs_place(queues, row.lane):
            if row.state == "PENDING":
                changes[job_id] = enqueue_for_place(batch, row)
            continue
        if decided.outcome == "assign" and job_id not in holding and needs_tokens(context, row):
            decided = hold_for_tokens(batch, row, decided)
        change = _decision_columns(batch, world, row, decided, before)
        if change is None:
            continue
        change |= leave_queue_columns(row, places.get(job_id))
        kept = kept_of.get(id(ruling))
        if kept is None:
            kept = kept_of[id(ruling)] = cache_eligibility(ruling)
        bodies[kept.verdicts_hash] = kept.verdicts_body
        change |= quote_wait_columns(batch, row, ruling, world, wait_us=context.selections.quote_wait_us)
        if ruling.quoted and decided.chosen is not None:
            used.append(quote_use_row(job_id, ruling, decided.chosen, change["cluster_id"], now_us=batch.now_us))
        changes[job_id] = change | {"plan_hash": kept.verdicts_hash}
        counted.append((row, decided))
        moved += decided.outcome != "hold"
    count_rerouted(context.tally, batch, counted)
    jobs.verdicts_put(batch.tx, bodies, at_us=batch.now_us)
    jobs.job_update_many(batch.tx, changes)
    quotes.use_put(batch.tx, used)
    thin_wait_events(batch, (job_id for job_id, change in changes.items() if "state" not in change))
    return moved


def _is_stopped(row: jobs.Row) -> bool:
    """Whether the job was held or quarantined after it was read and before it was locked."""
    words = set((row.blocked or "").split(",")) - {"", BLOCKED_BY_QUEUE, BLOCKED_BY_QUOTES}
    return bool(words)


def spilled_of(row: jobs.Row, now_us: int) -> tuple[str, ...]:
    """The pools that the job's waiting has opened so far."""
    spill = decode_bounds(row.bounds).spill
    return opened_pools(spill, waited_s(row, now_us)) if spill else ()


def evaluate_again(
    context: Context, world: World, row: jobs.Row, body: str, round_: QuoteWindow | None = None
) -> Eligibility:
    """What holds for an accepted job now: the world, its owner's grants, and how long it has waited.

    `round_`: clusters were asked to quote for it, and the time to answer is over.
    """
    spec, bounds = msgspec.json.decode(body, type=JobSpec), decode_bounds(row.bounds)
    demand = demand_of_spec(spec)
    access = context.snapshots.access
    owner = owner_of(access, row.owner_id, row.owner)
    engine = bounds.engine or context.engines.default
    waited = waited_s(row, context.now_us())
    if missing := missing_owner_reason(access, row.owner_id, row.owner):
        bounds = msgspec.structs.replace(bounds, by_token=())  # submit tokens that the owner showed open nothing now
    ask = bounds.ask(demand, owner, world, engine=engine, last=avoided_clusters(row), waited_s=waited)
    ruling = evaluate_with_spill(bounds, ask, world)
    if missing:
        return replace(ruling, outcome="reject", able=world.rosters.field([]), reason=missing)
    return select_or_hold(context, ruling, bounds, spec, round_)


def _decision_columns(
    batch: Batch, world: World, row: jobs.Row, decided: Plan, before: EarlierVerdicts
) -> dict[str, Any] | None:
    """The columns that a decision about a PENDING job changes; none if the job is no longer waiting."""
    life = life_of(row)
    if row.state != "PENDING":
        return None
    # Of an array whose tasks run on, what is left is rejected when they have ended.
    if decided.outcome == "hold" or (decided.outcome == "reject" and row.tasks_live):
        if not is_same_reason(row.reason, decided.reason):
            record_wait_reason(batch, row, decided.reason)
        return {"reason": decided.reason}
    if decided.outcome == "reject":
        step = reject(life, decided.reason)
        record_step(batch, row, step)
        change = {"state": step.life.state.value, "reason": decided.reason, "ended_us": batch.now_us}
        return change if row.array is None else change | dropped_task_columns(row)
    step = assign(life)
    assert decided.chosen is not None
    cluster_id = world.by_name[decided.chosen].id
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=step.life.attempt,
        fence=step.life.fence,
        cluster_id=cluster_id,
        reason=before.cause(row, decided.chosen),
    )
    batch.clusters.add(cluster_id)
    return {
        "state": step.life.state.value,
        "reason": "",
        "cluster_id": cluster_id,
        "attempt": step.life.attempt,
        "fence": step.life.fence,
        "assigned_us": batch.now_us,
        "is_ready": row.array is None or bool(row.todo),
    }


def dropped_task_columns(row: jobs.Row) -> dict[str, Any]:
    """The columns of an array that ends before the tasks nobody has: they count as cancelled."""
    array = ArrayJob.of(row)
    return {"todo": "", "later": None, "tasks_cancelled": row.tasks_cancelled + array.left - array.live}


def lose_silent_attempts(context: Context, leadership: Leadership) -> int:
    """Attempts whose agent is silent for longer than the job bears; a removed agent is silent for ever."""
    now_us, silent_us = context.now_us(), context.snapshots.silent_after_us
    with context.database.read() as tx:
        amnesty_us = events.counters_read(tx).get(AMNESTY_COUNTER, 0)
        rows = leases.leased_by_silent(
            tx, now_us=now_us, amnesty_us=amnesty_us, bears_s=LOST_AFTER_S, silent_us=silent_us, limit=ROUND_MAX
        )
    lost = {
        row.id: row
        for row in rows
        # One that spoke since, and is not yet written down, is alive.
        if row.deleted_us is not None or not context.snapshots.is_live(row.agent_id)
    }
    if not lost:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        changes: dict[str, dict[str, Any]] = {}
        silent: set[str] = set()
        for job_id, row in jobs.job_lock(batch.tx, lost).items():
            judged = lost[job_id]
            if row.fence != judged.fence:
                continue  # that attempt ended meanwhile; another one is not to blame
            why = _lost_reason(judged, now_us)
            item = Report(job_id, row.fence, ObservedState.LOST, reason=why)
            # `requeue` needs no policy: the job is routed anew at once, and no retry is counted.
            again_us = None if row.on_lost == OnLost.REQUEUE.value else retry_due_us(batch, row, item)
            is_removed = judged.deleted_us is not None
            step = mark_lost(life_of(row), why, definite=False, again=again_us is not None, is_removed=is_removed)
            if step is not None:
                changes[job_id] = step_columns(batch, row, step, again_us=again_us)
                record_step(batch, row, step)
                silent.add(row.agent_id)
                batch.clusters.add(row.cluster_id)
        jobs.job_update_many(batch.tx, changes)
        # One that was only frozen has lost no answer and would poll on: it must hear that these attempts are over.
        clusters.agent_end_sessions(batch.tx, silent)
        return len(changes)

    return context.committer.call(apply, locks=list(lost))


def lose_silent_tasks(context: Context, leadership: Leadership) -> int:
    """The same for the tasks of arrays: the server itself says of each task that it is lost."""
    now_us, silent_us = context.now_us(), context.snapshots.silent_after_us
    with context.database.read() as tx:
        amnesty_us = events.counters_read(tx).get(AMNESTY_COUNTER, 0)
        rows = ranges.range_leased_by_silent(
            tx, now_us=now_us, amnesty_us=amnesty_us, bears_s=LOST_AFTER_S, silent_us=silent_us, limit=ROUND_MAX
        )
    lost = [row for row in rows if row.deleted_us is not None or not context.snapshots.is_live(row.agent_id)]
    if not lost:
        return 0
    ids = sorted({row.job_id for row in lost})

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        arrays = BatchArrays(batch)
        locked = jobs.job_lock(batch.tx, ids)
        arrays.load(list(locked.values()))
        count = 0
        for row in lost:
            for position in live_positions(row.tasks):
                item = Report(row.job_id, row.fence + position, ObservedState.LOST, reason=_lost_reason(row, now_us))
                count += arrays.report(None, item, retry_due_us(batch, locked[row.job_id], item)) is ReportAnswer.TAKEN
        arrays.flush()
        clusters.agent_end_sessions(batch.tx, {row.agent_id for row in lost})
        batch.clusters.update(row.cluster_id for row in lost if row.cluster_id)
        return count

    return context.committer.call(apply, locks=ids)


def _lost_reason(judged: jobs.Row, now_us: int) -> str:
    if judged.deleted_us is not None:
        return "its agent was removed"
    return f"its cluster was silent for {(now_us - judged.since_us) // 1_000_000} s"
