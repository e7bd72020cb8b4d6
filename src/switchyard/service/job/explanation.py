"""Explain a job: the verdicts of its last decision, those of now, its rules, its place in line, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from switchyard.model.access import Role
from switchyard.model.cluster import Health
from switchyard.model.job import JobSpec, State
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.queue import QueuePosition
from switchyard.model.spill import spill_notes
from switchyard.model.verdict import Answer, Decision, Explanation, Plan, Verdict
from switchyard.route.router import Eligibility
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.verdicts import decode_verdicts
from switchyard.route.world import World
from switchyard.service.context import Context
from switchyard.service.job.decision_history import history_of
from switchyard.service.job.jobs import array_tally, avoided_clusters, policy_of, visible_job
from switchyard.service.job.visibility import Visibility
from switchyard.service.quote.quotes import quotes_of
from switchyard.service.rights import Actor
from switchyard.service.snapshots import Snapshots, owner_of
from switchyard.service.submit.bounds import Bounds, decode_bounds, evaluate_with_spill
from switchyard.service.submit.demands import demand_of_spec
from switchyard.service.submit.hints import job_hints
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE
from switchyard.service.submit.select_cluster import select_or_hold
from switchyard.service.token.token_needs import needs_of_row, tasks_at_once_of_row
from switchyard.service.token.token_position import token_hints, token_notes, token_position
from switchyard.service.upkeep.queue_usage import queue_position
from switchyard.service.upkeep.wait_clock import is_held_back, waited_s
from switchyard.store import jobs


def job_explain(context: Context, actor: Actor, ref: str) -> Explanation:
    """Why the job is where it is, as far as the reader may see."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        body = jobs.verdicts_get(tx, row.plan_hash) if row.plan_hash else None
        earlier = jobs.attempt_list(tx, row.id)
        waits = jobs.dependency_list(tx, row.id)
        policy = policy_of(tx, row)
        place = queue_position(context, tx, row, may_see=lambda project: actor.may_project(Role.VIEW, project))
        line = token_position(context, tx, row)
        history = history_of(tx, row, earlier)
        used = quotes_of(tx, row.id)
    world, state = context.snapshots.world, State(row.state)
    spec, bounds = msgspec.json.decode(row.spec, type=JobSpec), decode_bounds(row.bounds)
    ask = _ask(context, actor, row, spec, bounds)
    ruling = evaluate_with_spill(bounds, ask, world)
    chosen = select_or_hold(context, ruling, bounds, spec)
    unseen, decided = _unseen(ask, world), None
    sight = Visibility(context, actor)
    is_own = sight.is_own(row)
    if not is_own:
        history = [
            msgspec.structs.replace(each, cluster=sight.name(each.cluster), reason=sight.text(each.reason))
            for each in history
        ]
        unseen |= {quote.cluster for quote in used.quotes if not sight.sees_name(quote.cluster)} if used else set()
    if body is not None:
        decided = _decided(context, row, bounds, body=body, history=history, unseen=unseen)
        if not is_own:
            decided = _without_hidden(decided, sight)
    is_stuck = state in (State.PENDING, State.REJECTED) or _is_stranded(row, chosen, unseen)
    return Explanation(
        job=row.id,
        state=state.value,
        plan=decided,
        now=_dated(context.snapshots, world, chosen.verdicts, decided),
        hints=_hints(
            job_hints(ask, world, ruling, chosen, policy) if is_stuck else [],
            besides=[
                *_of_queue(row, place),
                *(
                    token_hints(context, needs_of_row(row), line=line, at_once=tasks_at_once_of_row(row))
                    if line
                    else []
                ),
            ],
        ),
        notes=[
            sight.text(note, is_own=is_own)
            for note in (
                *_notes(row, spec, earlier),
                *_waits(row, waits),
                *_spills(context, row, bounds),
                *token_notes(context, row, line),
            )
        ],
        policy=sight.policy(row, policy),
        standing=place,
        quotes=[
            quote for quote in used.quotes if quote.cluster not in unseen and (is_own or sight.sees_name(quote.cluster))
        ]
        if used is not None
        else [],
        history=history,
    )


def _ask(context: Context, actor: Actor, row: jobs.Row, spec: JobSpec, bounds: Bounds) -> RoutingRequest:
    """What the owner may, as the reader may see it: an administrator's grants are no reason why a user's job runs."""
    world = context.snapshots.world
    owner = owner_of(context.snapshots.access, row.owner_id, row.owner)
    by_token = frozenset(bounds.by_token) if row.owner_id == actor.id else frozenset()
    return bounds.ask(
        demand_of_spec(spec),
        owner,
        world,
        engine=bounds.engine or context.engines.default,
        last=avoided_clusters(row),
        hidden=actor.hidden_clusters(world) - by_token,
        waited_s=_waited_s(context, row),
    )


def _hints(ways: list[str], *, besides: list[str]) -> list[str]:
    """What would let it run: any of the ways, and with it all that it needs besides."""
    needed = " and ".join(besides)
    if not needed:
        return ways
    return [f"{way} and {needed}" for way in ways] or [needed]


def _of_queue(row: jobs.Row, place: QueuePosition | None) -> list[str]:
    """What a job needs that waits for a place in its queue: one for itself, and for all before it."""
    if place is None or row.blocked != BLOCKED_BY_QUEUE:
        return []
    for taken, limit, whose in (
        (place.running, place.limit, ""),
        (place.project_running, place.project_limit, f"for project {row.project} "),
    ):
        if taken is not None and limit is not None and taken >= limit:
            lacking = taken - limit + place.ahead + 1
            many = f"{lacking}{'+' if place.is_more else ''} more place{'s' if lacking > 1 else ''}"
            return [f"{many} {whose}in queue {place.queue} ({taken} of {limit} are taken)"]
    return []


def _is_stranded(row: jobs.Row, chosen: Eligibility, unseen: set[str]) -> bool:
    """Whether it is in line where nobody begins it now, nor elsewhere, as far as the reader can tell."""
    is_able = any(verdict.say is Answer.YES for verdict in chosen.verdicts)
    return bool(row.is_ready) and not is_able and row.cluster not in unseen


def _unseen(ask: RoutingRequest, world: World) -> set[str]:
    return {member.name for member in world.members if member.id in ask.hidden}


def _decided(
    context: Context, row: jobs.Row, bounds: Bounds, *, body: str, history: Sequence[Decision], unseen: set[str]
) -> Plan:
    """The last decision as it was made."""
    outcome = "assign" if row.cluster else ("reject" if row.state == State.REJECTED.value else "hold")
    algorithm, _ = context.selections.choose(bounds.select)
    return Plan(
        chosen=row.cluster,
        verdicts=[verdict for verdict in decode_verdicts(body) if verdict.cluster not in unseen],
        algorithm=algorithm,
        seed=row.id,
        outcome=outcome,
        reason=row.reason,
        engine=bounds.engine or context.engines.default,
        at_us=history[-1].at_us if history else row.created_us,
    )


def _without_hidden(decided: Plan, sight: Visibility) -> Plan:
    """A decision as somebody may read it from whom clusters are hidden."""
    return msgspec.structs.replace(
        decided,
        chosen=sight.name(decided.chosen),
        verdicts=[each for each in decided.verdicts if sight.sees_name(each.cluster)],
        reason=sight.text(decided.reason),
    )


def _dated(snapshots: Snapshots, world: World, verdicts: Iterable[Verdict], decided: Plan | None) -> list[Verdict]:
    """Since when each cluster says so: one that said the same at the last decision, at least since then."""
    before = {verdict.cluster: verdict for verdict in decided.verdicts} if decided is not None else {}
    found = []
    for verdict in verdicts:
        since_us = _silent_since(snapshots, world, verdict)
        if since_us is None and decided is not None and before.get(verdict.cluster) == verdict:
            since_us = decided.at_us
        found.append(verdict if since_us is None else msgspec.structs.replace(verdict, since_us=since_us))
    return found


def _silent_since(snapshots: Snapshots, world: World, verdict: Verdict) -> int | None:
    """When a cluster that is down last spoke."""
    member = world.by_name.get(verdict.cluster)
    if member is None or verdict.step != "health" or member.health is not Health.DOWN:
        return None
    return (
        max((snapshots.seen.get(each, 0) for each in snapshots.fleet.by_cluster.get(member.id, ())), default=0) or None
    )


def _spills(context: Context, row: jobs.Row, bounds: Bounds) -> list[str]:
    """What its waiting leads to, as long as it has not begun."""
    if not bounds.spill or row.leased_us is not None or State(row.state) in FINAL_STATES:
        return []
    return spill_notes(bounds.spill, bounds.spill_from, _waited_s(context, row))


def _waited_s(context: Context, row: jobs.Row) -> float:
    return 0.0 if is_held_back(row.blocked) else waited_s(row, context.now_us())


def _notes(row: jobs.Row, spec: JobSpec, earlier: Sequence[jobs.Row]) -> list[str]:
    notes = [
        f"attempt {past.attempt} on {past.cluster or '(removed)'} ended: {past.ended} {past.reason}".rstrip()
        for past in earlier
    ]
    if row.cancel_us is not None and State(row.state) not in FINAL_STATES:
        notes.append("its end was asked for; it counts as cancelled once the cluster confirms")
    if State(row.state) is State.ASSIGNED:
        held = "an agent has the lease" if row.agent_id else "it waits in line for its lease"
        notes.append(f"assigned to {row.cluster}: {held}")
    if spec.image:
        notes.append("the image is passed on; a local backend runs the command on the host (containers: ignore)")
    return notes


def _waits(row: jobs.Row, waits: Sequence[jobs.Row]) -> list[str]:
    notes = [f"begins after {each.on_id} ended {each.condition}" for each in waits]
    if row.late_us is not None:
        notes.append("late: it waited for longer than its queueing budget")
    if "hold" in (row.blocked or ""):
        notes.append("held: `yard release` lets it go")
    if row.tries:
        notes.append(f"retry {row.tries} of {row.retries}")
    if (tally := array_tally(row)) is not None:
        notes.append(
            f"array of {tally.total}: {tally.ok} ok, {tally.failed} failed, {tally.cancelled} cancelled, "
            f"{tally.live} live, {tally.waiting} waiting"
        )
    return notes
