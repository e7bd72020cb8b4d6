"""Plan the jobs that a step starts: as many as one transaction and the limits of the user take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from sys import maxsize
from time import monotonic
from typing import Any

import msgspec

from switchyard.errors import LimitReached, YardError
from switchyard.features.flyte.service.executions.driving.loading import LoadedExecution
from switchyard.features.flyte.service.executions.nodes.child_executions import (
    CHILDREN_MAX,
    TAKEN_OVER_MAX,
    PlannedChild,
    children_to_start,
    plan_child,
)
from switchyard.features.flyte.service.executions.nodes.child_placement import child_fits
from switchyard.features.flyte.service.executions.nodes.job_starts import JobStarter, PlannedJob, StartRefused
from switchyard.features.flyte.service.executions.nodes.node_cache import LATER, Answers
from switchyard.features.flyte.service.executions.nodes.placement import ClusterChoice, choose_cluster, is_spread
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptFailure,
    EngineStep,
    NodeProgress,
    TaskStart,
)
from switchyard.features.flyte.workflow.engine.start_choice import AttemptKey, StartRoom, WaitingStart, choose_starts
from switchyard.features.flyte.workflow.values.limits import CONFIG_SECTION, WorkflowLimits
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.submit.submit import Submit

UNBOUNDED = maxsize // 4
MAPS_MAX = 20  # that begin in one step
STARTS_MAX = 100  # jobs of one step, which is one transaction; the next step starts the rest
FULL_PLANS_MAX = 50  # that one step finds out about; children behind these wait with them
PLAN_S_MAX = 1.0  # then the step takes what it has
LATE = "other attempts of the execution begin first"
ROWS_PER_START = 2  # of a node and of its attempt


@dataclass(slots=True)
class StepPlan:
    """`refusals`: attempts that can never begin. `waits`: those that a limit holds up, with the reason. The others that
    are not in `jobs` are decided again by the next step."""

    jobs: list[PlannedJob] = field(default_factory=list)
    refusals: dict[AttemptKey, AttemptFailure] = field(default_factory=dict)
    waits: dict[AttemptKey, WaitingStart] = field(default_factory=dict)
    cluster: str = ""  # that the execution has from this step on, if it had none
    children: list[PlannedChild] = field(default_factory=list)
    maps: list[TaskStart] = field(default_factory=list)
    answers: Answers = field(default_factory=dict)

    def has_new_waits(self, known: Mapping[AttemptKey, WaitingStart]) -> bool:
        """Whether the engine decides otherwise, now that it is known what waits."""
        return any(key not in known and (key[1] or wait.is_plan_full) for key, wait in self.waits.items())

    def left_out(self, engine_step: EngineStep) -> set[str]:
        """Nodes that do not begin in this step, though the engine would start them."""
        planned = [*(job.start for job in self.jobs), *(child.start for child in self.children), *self.maps]
        return {start.node_id for start in engine_step.starts} - {start.node_id for start in planned}

    def is_more_due(self, engine_step: EngineStep) -> bool:
        """Whether the next step can begin nodes that this one left out. A full family waits for the end of a child."""
        if LATER in self.answers.values() or self.waits:
            return True
        has_room = self.is_full_of_children
        left_out = self.left_out(engine_step)
        return any(start.node_id in left_out and (has_room or not start.is_child) for start in engine_step.starts)

    @property
    def is_full_of_children(self) -> bool:
        """Whether the other children begin with the next step."""
        taken_over = sum(len(child.node_ids) for child in self.children)
        return len(self.children) >= CHILDREN_MAX or taken_over >= TAKEN_OVER_MAX

    def changes(self, engine_step: EngineStep) -> list[NodeProgress]:
        """What to store of nodes: without those that are left out."""
        left_out = self.left_out(engine_step)
        return [node for node in engine_step.nodes if node.node_id not in left_out]

    @property
    def postponed_ends(self) -> set[AttemptKey]:
        """Ended attempts whose next attempt waits. They are decided again later, by their end."""
        return postponed_ends(self.waits)


def postponed_ends(waits: Iterable[AttemptKey]) -> set[AttemptKey]:
    return {(node_id, attempt - 1) for node_id, attempt in waits if attempt}


def full_plans(waits: Iterable[WaitingStart]) -> set[EntityId]:
    """The launch plans that are full. One of the nodes of each waits for all of them."""
    return {wait.start.task for wait in waits if wait.is_plan_full}


@dataclass(slots=True)
class StartPlanner:
    """Plans the jobs and children of one step. It keeps what it has planned: after refusals the engine is asked again,
    and most of the plans are the same."""

    submit: Submit
    starter: JobStarter
    answers: Answers
    _jobs: dict[tuple[str, int, str], PlannedJob] = field(default_factory=dict)  # by node, attempt and cluster
    _children: dict[tuple[str, str], PlannedChild] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)  # ids of jobs whose files are in the store
    _refusal_count: int = 0
    _until: float = field(default_factory=lambda: monotonic() + PLAN_S_MAX)

    @property
    def is_late(self) -> bool:
        """Whether the step has planned for long enough. It plans at least one attempt, be that refused."""
        return bool(self._jobs or self._refusal_count) and monotonic() > self._until

    def has_plan(self, row: ExecutionRow, start: TaskStart) -> bool:
        return (start.node_id, start.attempt, row.cluster) in self._jobs

    def plan_job(self, context: Context, row: ExecutionRow, start: TaskStart) -> PlannedJob:
        key = start.node_id, start.attempt, row.cluster
        known = self._jobs.get(key)
        if known is None or known.start.inputs != start.inputs:
            try:
                known = self._jobs[key] = self.starter.plan(context, row, start, start.template, is_counted=True)
            except StartRefused:
                self._refusal_count += 1
                raise
        return known

    def store_files(self, context: Context, jobs: Sequence[PlannedJob]) -> None:
        """Store the files of jobs that were not stored before."""
        self.starter.store_files(context, [job for job in jobs if job.write.row.id not in self._stored])
        self._stored.update(job.write.row.id for job in jobs)

    def plan_child(self, context: Context, row: ExecutionRow, spec: Any, start: TaskStart) -> PlannedChild:
        key = start.node_id, row.cluster
        known = self._children.get(key)
        if known is None or known.start.inputs != start.inputs:
            known = self._children[key] = plan_child(context, row, spec, start)
        return known


def plan_starts(
    context: Context,
    planner: StartPlanner,
    loaded: LoadedExecution,
    starts: Sequence[TaskStart],
    waits: Mapping[AttemptKey, WaitingStart],
) -> StepPlan:
    """Plan the jobs, maps and children of a step, and collect all that are refused or wait.

    `waits`: attempts that are known to wait, with the reason.
    """
    # The engine leaves these out of `starts`: further attempts, and nodes of full launch plans.
    known = {key: wait for key, wait in waits.items() if key[1] or wait.is_plan_full}
    plan = StepPlan(waits=known, answers=planner.answers)
    actor = owner_of(context.snapshots.access, loaded.row.owner_id, loaded.row.owner)
    try:
        choice = _place(context, planner.submit, actor, loaded) if starts else ClusterChoice(loaded.row.cluster)
    except YardError as exc:
        if exc.transient:
            raise
        plan.refusals = {(start.node_id, start.attempt): AttemptFailure("Refused", exc.detail) for start in starts}
        return plan
    plan.cluster = choice.cluster
    if choice.reason:
        waiting = ((start, waits.get((start.node_id, start.attempt))) for start in starts)
        plan.waits |= {
            (start.node_id, start.attempt): known or WaitingStart(start, choice.reason) for start, known in waiting
        }
        return plan
    row = msgspec.structs.replace(loaded.row, cluster=plan.cluster)
    _plan_children(context, planner, row, starts, loaded=loaded, plan=plan, waits=waits)
    plan.maps = [start for start in starts if start.shape is not None][:MAPS_MAX]
    jobs = [start for start in starts if start.is_job]
    start_choice = choose_starts(jobs, _room(context, actor, loaded, wanted=len(jobs)), waits)
    plan.refusals |= start_choice.refusals
    plan.waits |= start_choice.waits
    _plan_jobs(context, planner, row, start_choice.begin, plan)
    return plan


def _plan_jobs(
    context: Context, planner: StartPlanner, row: ExecutionRow, starts: Sequence[TaskStart], plan: StepPlan
) -> None:
    full = ""
    for start in starts:
        key = start.node_id, start.attempt
        if full:
            plan.waits[key] = WaitingStart(start, full)
            continue
        if planner.is_late and not planner.has_plan(row, start):
            if start.attempt:
                plan.waits[key] = WaitingStart(start, LATE)  # the end before it stays live, and is decided again
            continue
        try:
            plan.jobs.append(planner.plan_job(context, row, start))
        except StartRefused as exc:
            note_refusal(exc, plan.refusals, plan.waits)
            full = plan.waits[key].reason if key in plan.waits else ""


def _plan_children(
    context: Context,
    planner: StartPlanner,
    row: ExecutionRow,
    starts: Sequence[TaskStart],
    *,
    loaded: LoadedExecution,
    plan: StepPlan,
    waits: Mapping[AttemptKey, WaitingStart],
) -> None:
    wanted = {(start.node_id, start.attempt): start for start in starts if start.is_child}
    plan.waits |= {key: waits[key] for key in wanted if key in waits}
    free = [start for key, start in wanted.items() if key not in waits]
    begin, refusals = children_to_start(context, row, free, ended=len(loaded.ended_children))
    plan.refusals |= refusals
    full = full_plans(plan.waits.values())
    for start in begin:
        if start.task in full or len(full) >= FULL_PLANS_MAX or plan.is_full_of_children:
            continue
        try:
            plan.children.append(planner.plan_child(context, row, loaded.spec, start))
        except StartRefused as exc:
            note_refusal(exc, plan.refusals, plan.waits)
            key = start.node_id, start.attempt
            if key in plan.waits:
                plan.waits[key] = replace(plan.waits[key], is_plan_full=True)
                full.add(start.task)


def note_refusal(
    exc: StartRefused, refusals: dict[AttemptKey, AttemptFailure], waits: dict[AttemptKey, WaitingStart]
) -> None:
    """Record that an attempt can never begin, or not yet. Raises what the next round tries again."""
    key = exc.start.node_id, exc.start.attempt
    if exc.error.transient:
        raise exc.error from exc
    if isinstance(exc.error, LimitReached):
        waits[key] = WaitingStart(exc.start, exc.error.detail)
    else:
        refusals[key] = AttemptFailure("Refused", exc.error.detail)


def _place(context: Context, submit: Submit, actor: Actor, loaded: LoadedExecution) -> ClusterChoice:
    """The cluster of the execution. One that was deleted never comes back, so another one is chosen."""
    row = loaded.row
    if is_spread(loaded.spec) or row.cluster in context.snapshots.world.by_name:
        return ClusterChoice(row.cluster)
    row = msgspec.structs.replace(row, cluster="")
    children = child_fits(submit, actor, row, loaded.spec, loaded.graph, context=context)
    return choose_cluster(submit, actor, row, loaded.spec, loaded.graph, children=children)


def _room(context: Context, actor: Actor, loaded: LoadedExecution, *, wanted: int) -> StartRoom:
    """How many of the wanted jobs may begin in this step. The limits are looked at once for all of them."""
    jobs = context.usage.room(actor).jobs
    if jobs is not None and jobs < wanted and context.usage.freshen(context.database, actor.name):
        jobs = context.usage.room(actor).jobs
    reason = ""
    if jobs is not None and jobs < wanted:
        try:
            context.usage.refuse_over(actor, jobs=jobs + 1, size=(jobs + 1) * JOB_OVERHEAD_BYTES)
            jobs = None  # some jobs have ended in the meantime
        except LimitReached as exc:
            reason = exc.detail
    rows, failure = bound_failure(context.setting(WorkflowLimits), rows=loaded.nodes.rows, size=loaded.nodes.size)
    return StartRoom(jobs, reason, rows, failure, STARTS_MAX)


def bound_failure(limits: WorkflowLimits, *, rows: int, size: int) -> tuple[int, AttemptFailure]:
    """How many jobs more an execution of this size may have, and the failure of further ones.

    Retries and expansions grow without an end. `rows`: of nodes and attempts; `size`: of what nodes take and give.
    """
    by_rows = max(0, (limits.execution_rows - rows) // ROWS_PER_START) if limits.execution_rows else UNBOUNDED
    if 0 < limits.execution_bytes < size:
        name, most, used, what = "execution_bytes", limits.execution_bytes, size, "bytes of inputs and outputs of nodes"
        by_rows = 0
    else:
        used, what = rows + ROWS_PER_START * (by_rows + 1), "nodes and attempts"
        name, most = "execution_rows", limits.execution_rows
    return by_rows, AttemptFailure(
        "ExecutionTooLarge",
        f"the execution has {used} {what}. The limit `{CONFIG_SECTION}.{name}` of the server's config file is {most}. "
        "Split the workflow into several executions",
    )
