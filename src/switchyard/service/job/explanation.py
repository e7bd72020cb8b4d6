"""Explain a job: verdicts of its last decision and of now, its rules, its queue position, and hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.verdict import Answer, Decision, Explanation, Outcome, Plan, Verdict
from switchyard.model.job.blocker import Blocker, has_blocker, is_held_back
from switchyard.model.job.bounds import Bounds, decode_bounds
from switchyard.model.job.image_rules import image_note, image_refusal
from switchyard.model.job.job import JobSpec, State, Usage
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.spill import spill_notes
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.jobspec.alternatives import set_names
from switchyard.model.rules.access import Role
from switchyard.model.rules.queue import QueuePosition
from switchyard.route.checks import TAKES_NO_FILES, TAKES_NOTHING
from switchyard.route.router import Eligibility
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.verdicts import decode_verdicts
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.job.jobs import array_tally, silence_reason, wait_reason
from switchyard.service.job.task_notes import task_notes
from switchyard.service.lifecycle.array_spread import lessee_ids, read_avoided_tasks
from switchyard.service.lifecycle.chosen_sets import number_at, read_chosen_sets
from switchyard.service.lifecycle.decision_history import history_of
from switchyard.service.lifecycle.visibility import Visibility, policy_of, visible_job
from switchyard.service.lifecycle.wait_clock import waited_s
from switchyard.service.placement.decision import evaluate_job
from switchyard.service.placement.evaluation import stored_job
from switchyard.service.placement.hints import job_hints
from switchyard.service.placement.select_cluster import select_or_hold
from switchyard.service.reserve.queue_usage import queue_position
from switchyard.service.reserve.quotes import quotes_of
from switchyard.service.reserve.token_needs import needs_of_row, tasks_at_once_of_row
from switchyard.service.reserve.token_position import token_hints, token_notes, token_position
from switchyard.store.engine import ranges
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import AttemptOnCluster, DependencyRow, JobDetails


def job_explain(context: Context, actor: Actor, ref: str) -> Explanation:
    """Explain the state of a job, without clusters that are hidden from the reader."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        body = jobs.verdicts_get(tx, row.plan_hash) if row.plan_hash else None
        attempts = jobs.attempt_list(tx, row.id)
        dependencies = jobs.dependency_list(tx, row.id)
        policy = policy_of(tx, row)
        position = queue_position(context, tx, row, may_see=lambda project: actor.may_project(Role.VIEW, project))
        token_wait = token_position(context, tx, row)
        history = history_of(tx, row, attempts)
        quote_use = quotes_of(tx, row.id)
        by_cluster = ranges.tasks_by_cluster(tx, row.id) if row.array is not None else {}
        of_tasks = task_notes(tx, row, context.snapshots.fleet)
    world, state = context.snapshots.world, State(row.state)
    spec, bounds = msgspec.json.decode(row.spec or "", type=JobSpec), decode_bounds(row.bounds)
    request, eligibility = _evaluate_now(context, actor, row, spec, bounds)
    selection = select_or_hold(context, eligibility, bounds, spec)
    hidden, decision = _hidden_clusters(request, world), None
    visibility = Visibility(context, actor)
    is_own = visibility.is_own(row)
    quotes = quote_use.quotes if quote_use is not None else []
    if not is_own:
        history = [
            msgspec.structs.replace(event, cluster=visibility.name(event.cluster), reason=visibility.text(event.reason))
            for event in history
        ]
        hidden |= {quote.cluster for quote in quotes if not visibility.sees_name(quote.cluster)}
    if body is not None:
        decision = _last_decision(context, row, bounds, body=body, history=history, hidden=hidden)
        if not is_own:
            decision = _without_hidden(decision, visibility)
    is_stuck = state in (State.PENDING, State.REJECTED) or _is_stranded(row, selection, hidden)
    return Explanation(
        job=row.id,
        state=state.value,
        plan=decision,
        now=_with_times(context.snapshots, world, _with_trouble(context.snapshots, selection.verdicts), decision),
        hints=_combine_hints(
            job_hints(request, world, eligibility=eligibility, selection=selection, policy=policy) if is_stuck else [],
            required=[
                *_queue_hints(row, position),
                *(
                    token_hints(context, needs_of_row(row), line=token_wait, at_once=tasks_at_once_of_row(row))
                    if token_wait
                    else []
                ),
            ],
        ),
        notes=[
            visibility.text(note, is_own=is_own)
            for note in (
                *_attempt_notes(row, attempts, trouble=silence_reason(context, row) or wait_reason(context, row)),
                *_image_notes(context, row, spec),
                *_set_notes(context, row, spec),
                *_wait_notes(row, dependencies),
                *_spread_notes(context, row, bounds, by_cluster),
                *of_tasks,
                *_spill_notes(context, row, bounds),
                *token_notes(context, row, token_wait),
            )
        ],
        policy=visibility.policy(row, policy),
        standing=position,
        quotes=[quote for quote in quotes if quote.cluster not in hidden],
        history=history,
    )


def _evaluate_now(
    context: Context, actor: Actor, row: JobDetails, spec: JobSpec, bounds: Bounds
) -> tuple[RoutingRequest, Eligibility]:
    """Evaluate the job with the owner's rights, without clusters hidden from the reader.

    The reader's grants do not count: they have no influence on where the job runs.
    """
    world = context.snapshots.world
    opened = bounds.opened if row.owner_id == actor.id else frozenset()
    job = stored_job(context, row, spec, bounds)._replace(waited_s=_waited_s(context, row))
    return evaluate_job(context, world, job, hidden=actor.hidden_clusters(world) - opened)


def _combine_hints(alternatives: list[str], *, required: list[str]) -> list[str]:
    """Return the hints: any alternative helps, and each one needs all `required` changes too."""
    needed = " and ".join(required)
    if not needed:
        return alternatives
    return [f"{hint} and {needed}" for hint in alternatives] or [needed]


def _queue_hints(row: JobDetails, position: QueuePosition | None) -> list[str]:
    """Return how many places its queue lacks if the job waits for one: for itself and for all jobs ahead of it."""
    if position is None or row.blocked != Blocker.QUEUE:
        return []
    for taken, limit, scope in (
        (position.running, position.limit, ""),
        (position.project_running, position.project_limit, f"for project {row.project} "),
    ):
        if taken is not None and limit is not None and taken >= limit:
            lacking = taken - limit + position.ahead + 1
            places = f"{lacking}{'+' if position.is_more else ''} more place{'s' if lacking > 1 else ''}"
            return [f"{places} {scope}in queue {position.queue} ({taken} of {limit} are taken)"]
    return []


def _is_stranded(row: JobDetails, selection: Eligibility, hidden: set[str]) -> bool:
    """Return whether the job is queued at a visible cluster while no visible cluster can run it now."""
    is_eligible = any(verdict.say is Answer.YES for verdict in selection.verdicts)
    return bool(row.is_ready) and not is_eligible and row.cluster not in hidden


def _hidden_clusters(request: RoutingRequest, world: World) -> set[str]:
    return {member.name for member in world.members if member.id in request.hidden}


def _last_decision(
    context: Context, row: JobDetails, bounds: Bounds, *, body: str, history: Sequence[Decision], hidden: set[str]
) -> Plan:
    """Return the last decision as it was made."""
    outcome = Outcome.HOLD if row.state != State.REJECTED.value else Outcome.REJECT
    outcome = Outcome.ASSIGN if row.cluster else outcome
    algorithm, _ = context.selections.choose(bounds.select)
    return Plan(
        chosen=row.cluster,
        verdicts=[verdict for verdict in decode_verdicts(body) if verdict.cluster not in hidden],
        algorithm=algorithm,
        seed=row.id,
        outcome=outcome,
        reason=row.reason,
        engine=bounds.engine or context.engines.default,
        at_us=history[-1].at_us if history else row.created_us,
        alternative=number_at(row, row.cluster_id),
    )


def _without_hidden(decision: Plan, visibility: Visibility) -> Plan:
    """Return a decision without the clusters that are hidden from the reader."""
    return msgspec.structs.replace(
        decision,
        chosen=visibility.name(decision.chosen),
        verdicts=[verdict for verdict in decision.verdicts if visibility.sees_name(verdict.cluster)],
        reason=visibility.text(decision.reason),
    )


def _with_trouble(snapshots: Snapshots, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
    """Say in full why the cluster's agents take nothing new, or no files, now. The router knows only the cause."""
    by_name = snapshots.world.by_name
    for verdict in verdicts:
        member = by_name.get(verdict.cluster)
        trouble = snapshots.trouble_of(member.id) if member is not None and verdict.say is Answer.YES else ""
        reason = verdict.reason
        if member is not None and TAKES_NO_FILES in reason:
            reason = reason.partition(TAKES_NO_FILES)[0] + TAKES_NO_FILES + snapshots.files_trouble_of(member.id)
        elif (
            member is not None and member.is_batch_silent and member.health is Health.DOWN and verdict.step == "health"
        ):
            reason = f"{member.health.value}: {snapshots.trouble_of(member.id)}"
        elif trouble and TAKES_NOTHING in reason:
            reason = reason.partition(TAKES_NOTHING)[0] + TAKES_NOTHING + trouble
        elif trouble:
            reason = f"{reason}; {TAKES_NOTHING}{trouble}"
        yield msgspec.structs.replace(verdict, reason=reason)


def _with_times(
    snapshots: Snapshots, world: World, verdicts: Iterable[Verdict], decision: Plan | None
) -> list[Verdict]:
    """Add to each verdict since when it holds. A verdict equal to the last decision's holds at least since then."""
    before = {verdict.cluster: verdict for verdict in decision.verdicts} if decision is not None else {}
    dated = []
    for verdict in verdicts:
        since_us = _last_seen_us(snapshots, world, verdict)
        if since_us is None and decision is not None and before.get(verdict.cluster) == verdict:
            since_us = decision.at_us
        dated.append(verdict if since_us is None else msgspec.structs.replace(verdict, since_us=since_us))
    return dated


def _last_seen_us(snapshots: Snapshots, world: World, verdict: Verdict) -> int | None:
    """Return when an agent of a cluster that is down was last seen, or when its batch system last answered."""
    member = world.by_name.get(verdict.cluster)
    if member is None or verdict.step != "health" or member.health is not Health.DOWN:
        return None
    if member.is_batch_silent:
        return snapshots.reported_us(member.id) or None
    return (
        max((snapshots.seen.get(agent_id, 0) for agent_id in snapshots.fleet.by_cluster.get(member.id, ())), default=0)
        or None
    )


def _spill_notes(context: Context, row: JobDetails, bounds: Bounds) -> list[str]:
    """Return notes about the spill rules of a job that is not leased yet."""
    if not bounds.spill or row.leased_us is not None or State(row.state) in FINAL_STATES:
        return []
    return spill_notes(bounds.spill, bounds.spill_from, _waited_s(context, row))


def _waited_s(context: Context, row: JobDetails) -> float:
    return 0.0 if is_held_back(row.blocked) else waited_s(row, context.now_us())


def _attempt_notes(row: JobDetails, attempts: Sequence[AttemptOnCluster], *, trouble: str) -> list[str]:
    notes = []
    for attempt in attempts:
        cluster = attempt.cluster or "(removed)"
        with_set = "" if attempt.alternative is None else f" with alternative {attempt.alternative}"
        ended = f"ended: {attempt.ended} {attempt.reason}".rstrip()
        notes.append(f"attempt {attempt.attempt} on {cluster}{with_set} {ended}")
        notes += _difference_notes(attempt)
    notes += _difference_notes(row)
    if row.cancel_us is not None and State(row.state) not in FINAL_STATES:
        notes.append("cancel requested; the job is CANCELLED once its cluster confirms")
    if State(row.state) is State.ASSIGNED:
        held = "an agent has the lease" if row.agent_id else "it waits in line for its lease"
        notes.append(f"assigned to {row.cluster}: {held}" + (f"; {trouble}" if trouble else ""))
    elif State(row.state) is State.RUNNING and trouble:
        notes.append(f"running on {row.cluster}: {trouble}")
    return notes


def _difference_notes(row: JobDetails | AttemptOnCluster) -> list[str]:
    """Say where the cluster gave less or other than the job asked for."""
    try:
        words = "" if row.usage is None else msgspec.json.decode(row.usage, type=Usage).differences
    except UNREADABLE_ERRORS:
        return []
    return [f"attempt {row.attempt} was given {words}"] if words else []


def _image_notes(context: Context, row: JobDetails, spec: JobSpec) -> list[str]:
    """Say how the job's cluster runs its image, above all if the command runs on the host."""
    member = context.snapshots.world.by_id.get(row.cluster_id or "")
    if not spec.image or member is None or member.graph is None:
        return []
    if member.graph.images is None:
        return [f"image {spec.image}: {member.name} has not said whether it runs images"]
    how = image_note(spec.image, member.graph.images) or image_refusal(spec.image, member.graph.images)
    return [f"image {spec.image} on {member.name}: {how}", *_pin_notes(spec.image)]


def _pin_notes(image: str) -> list[str]:
    """Say that the tag of an image may mean another image at the next attempt, and what would pin it."""
    host = image.partition("/")[0]
    if "@" in image or not any(mark in host for mark in ".:"):
        return []
    return [f"image {image}: its tag is not pinned; an administrator may list {host} in `images` of the config"]


def _set_notes(context: Context, row: JobDetails, spec: JobSpec) -> list[str]:
    """Say which alternative the job has; of an array, the one at each cluster that may lease its tasks."""
    if not row.alternatives:
        return []
    names, by_id = set_names(spec), context.snapshots.world.by_id
    chosen = [(by_id[id_].name, number) for id_, number in read_chosen_sets(row.alternatives).items() if id_ in by_id]
    return [
        f"alternative {number} of {len(names)} on {cluster}: {names[number - 1]}" for cluster, number in sorted(chosen)
    ]


def _together_note(bounds: Bounds, by_cluster: Mapping[str | None, int], *, is_over: bool) -> str:
    """Say whether the tasks of an array together are on one cluster, and whether the array may still move."""
    if len(by_cluster) > 1:
        return "together: was asked for, but its cluster was lost or removed, and the rest ran on another one"
    if is_over:
        return "together: all its tasks were on one cluster"
    if bounds.begun_on is not None:
        return "together: its cluster has begun tasks, so all others run there, too"
    return "together: all its tasks stay on one cluster; until a task has begun, all of them may move"


def _spread_notes(context: Context, row: JobDetails, bounds: Bounds, by_cluster: Mapping[str | None, int]) -> list[str]:
    """Say which clusters may lease the tasks of an array, and which tasks they leave to each other."""
    if row.array is None:
        return []
    if bounds.is_together:
        return [_together_note(bounds, by_cluster, is_over=State(row.state) in FINAL_STATES)]
    if State(row.state) in FINAL_STATES:
        return []
    by_id = context.snapshots.world.by_id
    names = [by_id[lessee].name for lessee in lessee_ids(row) if lessee in by_id]
    if len(names) < 2:
        return []
    notes = [f"each of {', '.join(sorted(names))} leases tasks as it has room; {row.cluster} was chosen first"]
    for cluster_id, tasks in read_avoided_tasks(row.task_avoid, row.array).items():
        if cluster_id in by_id:
            count = "1 task is" if len(tasks) == 1 else f"{len(tasks)} tasks are"
            notes.append(f"{count} left to other clusters than {by_id[cluster_id].name}, which gave back or lost them")
    return notes


def _wait_notes(row: JobDetails, dependencies: Sequence[DependencyRow]) -> list[str]:
    notes = [f"begins after {dependency.on_id} ended {dependency.condition}" for dependency in dependencies]
    if row.late_us is not None:
        notes.append("late: it waited for longer than its queueing budget")
    if has_blocker(row.blocked, Blocker.HOLD):
        notes.append("held: `yard release` lets it go")
    if row.tries:
        notes.append(f"retry {row.tries} of {row.retries}")
    if (tally := array_tally(row)) is not None:
        notes.append(
            f"array of {tally.total}: {tally.ok} ok, {tally.failed} failed, {tally.cancelled} cancelled, "
            f"{tally.live} live, {tally.waiting} waiting"
        )
    return notes
