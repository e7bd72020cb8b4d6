"""Plan the jobs that a step starts: as many as one transaction and the limits of the user take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from switchyard.errors import LimitReached, YardError
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots import owner_of
from switchyard.service.executions.child_executions import CHILDREN_MAX, PlannedChild, plan_children
from switchyard.service.executions.job_starts import JobStarter, PlannedJob, StartRefused
from switchyard.service.executions.loading import LoadedExecution
from switchyard.service.executions.node_cache import LATER, Answers
from switchyard.service.executions.placement import ClusterChoice, choose_cluster, is_spread
from switchyard.service.submit.submit import Submit
from switchyard.workflow.execution_state import AttemptFailure, EngineStep, NodeProgress, TaskStart
from switchyard.workflow.limits import CONFIG_SECTION

MAPS_MAX = 20  # that begin in one step
STARTS_MAX = 100  # jobs of one step, which is one transaction; the next step starts the rest
PLAN_S_MAX = 1.0  # then the step takes what it has
ROWS_PER_START = 2  # of a node and of its attempt
AttemptKey = tuple[str, int]  # a node's id, and the number of the attempt


@dataclass(frozen=True, slots=True)
class WaitingStart:
    """An attempt that could begin, if a limit had room."""

    start: TaskStart
    reason: str


@dataclass(slots=True)
class StepPlan:
    """`refused`: attempts that can never begin. `waits`: those that a limit holds up, with the reason. The others that
    are not in `jobs` are decided again by the next step."""

    jobs: list[PlannedJob] = field(default_factory=list)
    refused: dict[AttemptKey, AttemptFailure] = field(default_factory=dict)
    waits: dict[AttemptKey, WaitingStart] = field(default_factory=dict)
    cluster: str = ""  # that the execution has from this step on, if it had none
    children: list[PlannedChild] = field(default_factory=list)
    maps: list[TaskStart] = field(default_factory=list)
    cached: Answers = field(default_factory=dict)

    def left_out(self, decided: EngineStep) -> set[str]:
        """Nodes that do not begin in this step, though the engine would start them."""
        planned = [*(job.start for job in self.jobs), *(child.start for child in self.children), *self.maps]
        return {start.node_id for start in decided.starts} - {start.node_id for start in planned}

    def is_more_due(self, decided: EngineStep) -> bool:
        """Whether the next step can begin nodes that this one left out. A full family waits for the end of a child."""
        if LATER in self.cached.values() or self.waits:
            return True
        has_room = len(self.children) >= CHILDREN_MAX
        left_out = self.left_out(decided)
        return any(start.node_id in left_out and (has_room or not start.is_child) for start in decided.starts)

    def changes(self, decided: EngineStep) -> list[NodeProgress]:
        """What to store of nodes: without those that are left out."""
        left_out = self.left_out(decided)
        return [node for node in decided.nodes if node.node_id not in left_out]

    @property
    def held(self) -> set[AttemptKey]:
        """Ended attempts whose next attempt waits. They are decided again later, by their end."""
        return held_ends(self.waits)


def held_ends(waits: Iterable[AttemptKey]) -> set[AttemptKey]:
    return {(node_id, attempt - 1) for node_id, attempt in waits if attempt}


@dataclass(frozen=True, slots=True)
class StartPlanner:
    """What plans need: who submits jobs, and which attempts are known to wait."""

    submit: Submit
    starter: JobStarter
    cached: Answers


def plan_starts(
    context: Context,
    planner: StartPlanner,
    loaded: LoadedExecution,
    starts: Sequence[TaskStart],
    waits: Mapping[AttemptKey, WaitingStart],
) -> StepPlan:
    """Plan the jobs of a step. `waits`: attempts that are known to wait, with the reason.

    Further attempts come first and all of them, because the end that they follow is stored with them.
    """
    plan = StepPlan(waits={key: wait for key, wait in waits.items() if key[1]}, cached=planner.cached)
    actor = owner_of(context.snapshots.access, loaded.row.owner_id, loaded.row.owner)
    until, full = monotonic() + PLAN_S_MAX, ""
    try:
        choice = _place(context, planner.submit, actor, loaded) if starts else ClusterChoice(loaded.row.cluster)
    except YardError as exc:
        if exc.transient:
            raise
        plan.refused = {(start.node_id, start.attempt): AttemptFailure("Refused", exc.detail) for start in starts}
        return plan
    plan.cluster, full = choice.cluster, choice.reason
    if not full:
        plan.children = plan_children(context, loaded.row, loaded.spec, starts)
        plan.maps = [start for start in starts if start.shape is not None][:MAPS_MAX]
    row = msgspec.structs.replace(loaded.row, cluster=plan.cluster)
    jobs = [start for start in starts if start.is_job or full]
    for start in sorted(jobs, key=lambda start: start.attempt == 0):
        key = start.node_id, start.attempt
        if full or key in waits:
            plan.waits[key] = WaitingStart(start, full) if full else waits[key]
            continue
        if start.attempt == 0 and plan.jobs and (len(plan.jobs) >= STARTS_MAX or monotonic() > until):
            break
        if failure := _bound_failure(context, loaded, starts=len(plan.jobs) + 1):
            plan.refused[key] = failure
            continue
        try:
            _refuse_over_limit(context, actor, jobs=len(plan.jobs) + 1)
            plan.jobs.append(planner.starter.plan(context, row, start, start.template, is_counted=True))
        except YardError as exc:
            error = exc.error if isinstance(exc, StartRefused) else exc
            if error.transient:
                raise error from exc
            if isinstance(error, LimitReached):
                full = error.detail
                plan.waits[key] = WaitingStart(start, full)
            else:
                plan.refused[key] = AttemptFailure("Refused", error.detail)
    return plan


def _place(context: Context, submit: Submit, actor: Actor, loaded: LoadedExecution) -> ClusterChoice:
    """The cluster of the execution. One that was deleted never comes back, so another one is chosen."""
    row = loaded.row
    if is_spread(loaded.spec) or row.cluster in context.snapshots.world.by_name:
        return ClusterChoice(row.cluster)
    return choose_cluster(submit, actor, row, loaded.spec, loaded.graph)


def _refuse_over_limit(context: Context, actor: Actor, *, jobs: int) -> None:
    """Raise LimitReached if the user may not have so many jobs more. The jobs of the step are not counted yet."""
    try:
        context.usage.refuse_over(actor, jobs=jobs, size=jobs * JOB_OVERHEAD_BYTES)
    except LimitReached:
        if not context.usage.freshen(context.database, actor.name):
            raise
        context.usage.refuse_over(actor, jobs=jobs, size=jobs * JOB_OVERHEAD_BYTES)


def _bound_failure(context: Context, loaded: LoadedExecution, *, starts: int) -> AttemptFailure | None:
    """Why an execution is too large for further jobs; None: it is not. Retries and expansions grow without an end."""
    limits = context.workflows
    for name, most, used, what in (
        ("execution_rows", limits.execution_rows, loaded.nodes.rows + ROWS_PER_START * starts, "nodes and attempts"),
        ("execution_bytes", limits.execution_bytes, loaded.nodes.size, "bytes of inputs and outputs of its nodes"),
    ):
        if 0 < most < used:
            return AttemptFailure(
                "ExecutionTooLarge",
                f"the execution has {used} {what}. The limit `{CONFIG_SECTION}.{name}` of the server's config file is "
                f"{most}. Split the workflow into several executions",
            )
    return None
