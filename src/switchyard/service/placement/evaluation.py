"""Evaluate accepted jobs again, with the current snapshot, grants of the owner and waiting time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from switchyard.match.demand import Demand
from switchyard.match.engine import Misfit, engine
from switchyard.match.free_graph import free_part
from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.verdict import Outcome
from switchyard.model.job.bounds import Bounds, decode_bounds
from switchyard.model.job.job import JobSpec
from switchyard.model.job.spill import opened_pools
from switchyard.route.member import Member
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import missing_owner_reason, owner_of
from switchyard.service.lifecycle.array_spread import together_wait_reason
from switchyard.service.lifecycle.decision_history import is_same_reason
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.service.lifecycle.transitions import avoided_clusters, refused_clusters
from switchyard.service.lifecycle.wait_clock import WaitingJob, waited_s
from switchyard.service.placement.decision import JobToPlace, evaluate_job
from switchyard.service.placement.route_budget import RouteBudget
from switchyard.service.placement.select_cluster import select_or_hold
from switchyard.service.reserve.quotes import QuoteWindow


class EvaluatedJob(WaitingJob, Protocol):
    """The columns of an accepted job that an evaluation needs. Several queries return such rows."""

    @property
    def owner(self) -> str: ...
    @property
    def owner_id(self) -> str | None: ...
    @property
    def bounds(self) -> str: ...
    @property
    def avoid(self) -> str | None: ...


class PendingJob(EvaluatedJob, Protocol):
    """A job that may be evaluated together with others of the same spec."""

    @property
    def id(self) -> str: ...
    @property
    def spec_hash(self) -> str: ...
    @property
    def reason(self) -> str: ...


def evaluate_changed(
    context: Context, world: World, rows: Sequence[PendingJob], specs: dict[str, str], budget: RouteBudget | None = None
) -> list[tuple[str, Eligibility]]:
    """Evaluate the jobs that the budget admits. Returns the eligibilities of jobs whose outcome or reason changes."""
    budget = budget or RouteBudget(clock=lambda: 0.0)
    known: dict[tuple[object, ...], Eligibility] = {}
    changed: list[tuple[str, Eligibility]] = []
    for row in rows:
        if not budget.admits(row.owner_id or "", row.id):
            continue
        began_s = budget.now_s()
        key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled_of(row, context.now_us()))
        eligibility = known.get(key)
        if eligibility is None:
            eligibility = known[key] = evaluate_again(context, world, row, specs[row.spec_hash])
        budget.spend(row.owner_id or "", row.id, began_s)
        is_as_before = eligibility.outcome is Outcome.HOLD and is_same_reason(row.reason, eligibility.reason)
        if not is_as_before or eligibility.asks:
            changed.append((row.id, eligibility))
    return changed


def spilled_of(row: EvaluatedJob, now_us: int) -> tuple[str, ...]:
    """Return the pools that spill rules have opened to the job, by its waiting time."""
    spill = decode_bounds(row.bounds).spill
    return opened_pools(spill, waited_s(row, now_us)) if spill else ()


def stored_job(context: Context, row: EvaluatedJob, spec: JobSpec, bounds: Bounds) -> JobToPlace:
    """Return an accepted job as a decision reads it now."""
    return JobToPlace(
        owner_of(context.snapshots.access, row.owner_id, row.owner),
        spec,
        demand_of_spec(spec),
        bounds,
        last=avoided_clusters(row),
        refused=refused_clusters(row),
        waited_s=waited_s(row, context.now_us()),
    )


def evaluate_again(
    context: Context,
    world: World,
    row: EvaluatedJob,
    body: str,
    window: QuoteWindow | None = None,
    *,
    is_preferring: bool = True,
) -> Eligibility:
    """Evaluate an accepted job and select among its eligible clusters.

    `window`: the job's clusters were asked for quotes within this window, and it is over. `is_preferring`: see
    `evaluate_job`.
    """
    spec, bounds = msgspec.json.decode(body, type=JobSpec), decode_bounds(row.bounds)
    if missing := missing_owner_reason(context.snapshots.access, row.owner_id, row.owner):
        bounds = msgspec.structs.replace(
            bounds, by_token=(), by_saved_token=()
        )  # tokens of a missing owner open no cluster
    _, eligibility = evaluate_job(context, world, stored_job(context, row, spec, bounds), is_preferring=is_preferring)
    if missing:
        return replace(eligibility, outcome=Outcome.REJECT, eligible=world.rosters.candidates([]), reason=missing)
    is_held = eligibility.outcome is Outcome.HOLD
    if is_held and bounds.begun_on and (waits := together_wait_reason(bounds.begun_on, world)):
        return replace(eligibility, reason=waits)
    return select_or_hold(context, eligibility, bounds, spec, window=window)


def fits_now(context: Context, member: Member, demand: Demand, *, by: str) -> tuple[bool | None, str]:
    """Return whether the job fits into the free resources that the agent last reported, and a reason.

    None: the agent does not report free resources by node. A cluster that is not up never fits.
    """
    if member.health is not Health.UP:
        return False, f"{member.health.value}: {member.reason}".rstrip(": ")
    load, graph = context.snapshots.load_of(member.id), member.graph
    if load is None or load.free is None or graph is None or load.signature != graph.signature:
        return None, "its agent does not say what is free on which node"
    free = free_part(graph, load.free)
    if free is None:
        return False, "nothing is free"
    match = engine(by).satisfy(demand, free)
    return (False, match.reason) if isinstance(match, Misfit) else (True, match.undecided)
