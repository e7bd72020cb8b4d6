"""Decide where a job goes. Submit, plan, explain, the leader and quotes all ask here.

1. `evaluate_job`: which clusters could run it. Submits of equal jobs share the answer (`EligibilityCache`).
2. `EligibilityCache.selected`, or `select_or_hold` of select_cluster.py: which of them its algorithm leaves.
3. `decide`: the draw among these, and the next step of the job. The caller writes the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE
from switchyard.model.cluster.verdict import Outcome, Plan
from switchyard.model.job.bounds import Bounds
from switchyard.model.job.job import JobSpec
from switchyard.model.job.spill import opened_pools
from switchyard.model.jobspec.alternatives import set_names, spec_with_set
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.queue import Lane, queue_named
from switchyard.route.alternatives import Alternative, combine_alternatives
from switchyard.route.router import Eligibility, evaluate_with_spill, make_plan
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.array_spread import may_spread, spread_text
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.service.placement.eligibility_cache import CachedEligibility, cache_eligibility
from switchyard.service.placement.select_cluster import SelectionCache
from switchyard.service.reserve.queue_places import hold_plan, queue_full_reason, queue_wait_reason
from switchyard.service.reserve.token_needs import token_wait_reason
from switchyard.service.reserve.token_position import token_shortage_reason
from switchyard.store.rules.queues import places_taken

ENTRIES_MAX = 4096  # cached eligibilities, one per shape and owner, for one version of the snapshots
QUICK_CLASSES_MAX = 64  # different clusters to match on the event loop: some milliseconds
QUICK_GRAPH_SIZE_MAX = 1000  # shapes and edges of graphs to match on the event loop: some milliseconds

ClusterReasons = tuple[tuple[str, str], ...]  # cluster ids, each with a reason


# 1. Which clusters could run it.


class JobToPlace(NamedTuple):
    """What decides where a job may run, besides the world and the rights of its owner.

    `last`: clusters to avoid while there is another. `refused`: clusters that refused the job before its start.
    `waited_s`: how long it has waited, for its spill rules.
    """

    owner: Actor
    spec: JobSpec
    demand: Demand
    bounds: Bounds
    last: ClusterReasons = ()
    is_elsewhere: bool = False  # its submitter asks for another cluster than those of `last`, come what may
    refused: ClusterReasons = ()
    waited_s: float = 0


def evaluate_job(
    context: Context,
    world: World,
    job: JobToPlace,
    *,
    hidden: frozenset[str] | None = None,
    is_preferring: bool = True,
) -> tuple[RoutingRequest, Eligibility]:
    """Ask the router: with the owner's current grants, and with the pools that spill rules have opened.

    `hidden`: clusters without a verdict; by default those that the owner may not see. `is_preferring`: of a job with
    alternatives that is drawn, only clusters that take its preferred set are eligible.
    """
    owner, bounds, probations = job.owner, job.bounds, world.owner_probations
    granted, opened = owner.granted_clusters(world), bounds.opened
    request = RoutingRequest(
        job.demand,
        # Without tokens the same set object, so that comparing sets of thousands is fast.
        granted=granted | opened if opened else granted,
        bounds=bounds,
        hidden=owner.hidden_clusters(world) - opened if hidden is None else hidden,
        spilled=opened_pools(bounds.spill, job.waited_s) if bounds.spill else (),
        last=job.last if job.is_elsewhere or not probations else (*job.last, *probations.get(owner.id, ())),
        refused=job.refused,
        engine=bounds.engine or context.engines.default,
        time_limit_s=_time_limit_s(job.spec) if world.has_ends else None,
    )
    if job.spec.alternatives:
        return request, _evaluate_alternatives(context, world, job, request, is_preferring=is_preferring)
    return request, evaluate_with_spill(request, world)


def _evaluate_alternatives(
    context: Context, world: World, job: JobToPlace, request: RoutingRequest, *, is_preferring: bool
) -> Eligibility:
    """Ask the router about each set. All clusters lease the tasks of an array that is spread, each with its own set."""
    bounds = job.bounds
    is_drawn = bounds.is_decided or context.selections.is_drawn(bounds.select)
    is_spread = bounds.is_array and may_spread(bounds, context.snapshots.laid.layout.sticky)
    alternatives = []
    for number, name in enumerate(set_names(job.spec), 1):
        spec = spec_with_set(job.spec, number)
        limit_s = _time_limit_s(spec) if world.has_ends else None
        asked = replace(request, demand=demand_of_spec(spec), time_limit_s=limit_s)
        alternatives.append(Alternative(asked.demand, name, evaluate_with_spill(asked, world)))
    return combine_alternatives(alternatives, is_preferring=is_preferring and is_drawn and not is_spread)


def _time_limit_s(spec: JobSpec) -> int | None:
    limit = spec.resources.time_limit
    return None if limit is None else parse_duration_s(limit)


class TooSlowForLoop(Exception):
    """The job must be decided on a thread: matching it takes too long for the event loop."""


class _Entry(NamedTuple):
    """`is_drawn`: no algorithm narrows the eligible clusters further."""

    cached: CachedEligibility
    key: tuple[object, ...]
    is_drawn: bool


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries for one version of the world and of the grants."""

    versions: tuple[int, int]
    by_key: dict[tuple[object, ...], _Entry] = field(default_factory=dict)


class EligibilityCache:
    """Remembers eligibilities of submitted jobs: many jobs of an owner differ only in their command."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._selections = SelectionCache(context)
        self._entries = _Entries((-1, -1))

    def selected(
        self, world: World, job: JobToPlace, versions: tuple[int, int], *, is_quick: bool = False
    ) -> CachedEligibility:
        """Return the clusters that the job's algorithm leaves of those that could run it.

        `versions`: of the world and of the owner's rights. `is_quick`: raise TooSlowForLoop if many clusters or large
        graphs must be matched for the first time.
        """
        entry = self._entry(world, job, versions, is_quick=is_quick)
        return entry.cached if entry.is_drawn else self._selections.among(entry.cached, entry.key, job.bounds, job.spec)

    def eligible(self, world: World, job: JobToPlace, versions: tuple[int, int]) -> Eligibility:
        """Return the clusters that could run the job."""
        return self._entry(world, job, versions).cached.eligibility

    def _entry(self, world: World, job: JobToPlace, versions: tuple[int, int], *, is_quick: bool = False) -> _Entry:
        entries = self._entries
        if entries.versions != versions or len(entries.by_key) > ENTRIES_MAX:
            # Several threads decide. A thread with an older snapshot writes into the older cache, never into this one.
            entries = self._entries = _Entries(versions)
        bounds = job.bounds
        limit_s = _time_limit_s(job.spec) if world.has_ends else None
        key: tuple[object, ...] = (job.owner.id, job.demand.key, bounds, job.last, limit_s)
        if job.spec.alternatives:  # the sets as they are written, since verdicts name them
            key += (job.spec.resources, job.spec.alternatives)
        entry = entries.by_key.get(key)
        if entry is None:
            engine = bounds.engine or self._context.engines.default
            is_slow = job.spec.demand is not None or job.spec.alternatives or _is_long(world, job.demand, engine)
            if is_quick and is_slow:
                raise TooSlowForLoop
            _, eligibility = evaluate_job(self._context, world, job)
            is_drawn = bounds.is_decided or self._context.selections.is_drawn(bounds.select)
            entry = entries.by_key[key] = _Entry(cache_eligibility(eligibility), key, is_drawn)
        return entry


def _is_long(world: World, demand: Demand, engine: str) -> bool:
    """Whether an evaluation may take longer than some milliseconds. Engines other than the default always may."""
    index = world.index
    if engine != DEFAULT_ENGINE or index.classes > QUICK_CLASSES_MAX:
        return True
    return index.unanswered_size(demand, by=engine) > QUICK_GRAPH_SIZE_MAX


# 3. The draw, and the next step.


class Placement(Enum):
    """The next step of a PENDING job."""

    REJECT = "reject"  # no cluster could ever run it
    BLOCK = "block"  # the user holds it, or it waits for other jobs
    WAIT = "wait"  # no eligible cluster now
    ASK_QUOTES = "ask_quotes"  # the selection needs quotes first
    QUEUE = "queue"  # a cluster would take it; its queue has no free place
    WAIT_TOKENS = "wait_tokens"  # a cluster would take it; the leader has not granted its tokens
    ASSIGN = "assign"


class JobNeeds(NamedTuple):
    """What a job needs besides a cluster. `block_reason`: why its user holds it back; empty: it is not held back."""

    job_id: str
    lane: Lane
    tokens: Mapping[str, int]
    block_reason: str = ""
    has_live_tasks: bool = False


class Reservations(NamedTuple):
    """The jobs that have a place of their queue, and those that have their tokens."""

    places: Collection[str] = ()
    tokens: Collection[str] = ()


NO_RESERVATIONS = Reservations()


class PlacementDecision(NamedTuple):
    """`plan`: holds the job if it must wait. `drawn`: the cluster that it will get, also while it waits for a place in
    its queue or for tokens."""

    step: Placement
    plan: Plan
    drawn: str | None


def decide(
    context: Context,
    eligibility: Eligibility,
    job: JobNeeds,
    *,
    reserved: Reservations = NO_RESERVATIONS,
    is_shown: bool = False,
) -> PlacementDecision:
    """Draw the job's cluster, and say what comes next for the job. `is_shown`: the plan has all verdicts."""
    plan = make_plan(eligibility, seed=job.job_id, is_shown=is_shown)
    queues = context.snapshots.laid.layout.queues
    step = next_step(
        eligibility.outcome,
        asks=bool(eligibility.asks),
        is_blocked=bool(job.block_reason),
        lacks_place=bool(queues) and job.job_id not in reserved.places and job.lane.needs_place(queues),
        lacks_tokens=bool(job.tokens) and job.job_id not in reserved.tokens,
        has_live_tasks=job.has_live_tasks,
    )
    if step is Placement.ASSIGN:
        return PlacementDecision(step, plan, plan.chosen)
    if step is Placement.QUEUE:
        return PlacementDecision(step, hold_plan(plan, queue_wait_reason(job.lane)), plan.chosen)
    if step is Placement.WAIT_TOKENS:
        return PlacementDecision(step, hold_plan(plan, token_wait_reason(job.tokens)), plan.chosen)
    if step is Placement.BLOCK and (eligibility.outcome is Outcome.ASSIGN or eligibility.asks):
        plan = hold_plan(plan, job.block_reason)
    return PlacementDecision(step, plan, None)


def decide_as_if_next(context: Context, eligibility: Eligibility, job: JobNeeds) -> Plan:
    """Return the plan of a job that were the next of all to get a place and tokens. It says what is taken, if it is."""
    full = short = ""
    if eligibility.outcome is Outcome.ASSIGN:
        full, short = _full_reason(context, job.lane), token_shortage_reason(context, job.tokens)
    reserved = Reservations(places=() if full else (job.job_id,), tokens=() if short else (job.job_id,))
    step, plan, _ = decide(context, eligibility, job, reserved=reserved, is_shown=True)
    if step is Placement.QUEUE:
        return hold_plan(plan, full)
    return hold_plan(plan, short) if step is Placement.WAIT_TOKENS else plan


def _full_reason(context: Context, lane: Lane) -> str:
    """Return why a job of this lane would get no place in its queue now. Empty: it would, or needs no place."""
    queues = context.snapshots.laid.layout.queues
    if not lane.needs_place(queues):
        return ""
    with context.database.read() as tx:
        return queue_full_reason(queues, lane, places_taken(tx, queue_named(queues, lane.queue).counted(lane.queue)))


def next_step(
    outcome: Outcome,
    *,
    asks: bool,
    is_blocked: bool,
    lacks_place: bool,
    lacks_tokens: bool,
    has_live_tasks: bool = False,
) -> Placement:
    """Return the next step of a PENDING job. The first rule that applies wins. Pure.

    `asks`: the selection needs quotes before it can choose; the router holds such a job. A place comes before tokens:
    tokens are granted together with a place, so a job of a full queue takes none. The rest of an array is rejected
    only when its live tasks have ended.
    """
    if outcome is Outcome.REJECT:
        return Placement.WAIT if has_live_tasks else Placement.REJECT
    if is_blocked:
        return Placement.BLOCK
    if asks:
        return Placement.ASK_QUOTES
    if outcome is Outcome.HOLD:
        return Placement.WAIT
    if lacks_place:
        return Placement.QUEUE
    if lacks_tokens:
        return Placement.WAIT_TOKENS
    return Placement.ASSIGN


def spread_of(context: Context, eligibility: Eligibility, bounds: Bounds, world: World, plan: Plan) -> str | None:
    """Return the column `spread` of a job by its decision. None: no array, no cluster yet, or one cluster alone."""
    if not bounds.is_array or plan.chosen is None:
        return None
    sticky_pools = context.snapshots.laid.layout.sticky
    return spread_text(eligibility, bounds, world, cluster=plan.chosen, seed=plan.seed, sticky_pools=sticky_pools)
