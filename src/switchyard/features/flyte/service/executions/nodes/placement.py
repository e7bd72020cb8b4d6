"""The cluster of an execution: one draw on its name, among the clusters where all of its known tasks fit.

All nodes of an execution stay on that cluster, and so do the executions that its launch plan nodes start. Tasks that
are not known before they run, as those of dynamic workflows, stay there too. An execution that asks for `spread` has
each of its nodes routed by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from flyteidl.core import literals_pb2

from switchyard.errors import BadRequest, YardError
from switchyard.features.flyte.service.executions.nodes.node_jobs import NO_TREE, job_request
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.compile.references import all_nodes
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph
from switchyard.features.flyte.workflow.engine.execution_state import TaskStart
from switchyard.features.flyte.workflow.engine.node_job import trial_template
from switchyard.model.cluster.verdict import Answer, Outcome, Plan
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.names import printable_line
from switchyard.route.select.weighted_draw import draw
from switchyard.service.core.rights import Actor
from switchyard.service.submit.submit import JobEligibility, Submit

SPREAD_ANNOTATION = "switchyard/spread"
TASKS_MAX = 1000  # different tasks of a workflow that are compared with the clusters: about a second
TASKS_SHOWN = 5
CLUSTERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """`cluster`: its name; empty: none can take all tasks now, and `reason` says why.

    `pool`, `label`: what bounds the tasks, by the execution's spec or by a rule.
    """

    cluster: str
    reason: str = ""
    pool: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class TaskFit:
    """Where one task could run. `now`: weights of eligible clusters. `later`: clusters that cannot take it now."""

    node_id: str
    task: str
    job: JobEligibility
    now: dict[str, float]
    later: dict[str, str]

    @property
    def ever(self) -> set[str]:
        return {*self.now, *self.later}


@dataclass(frozen=True, slots=True)
class RefusedTask:
    """A task that the rules refuse."""

    node_id: str
    task: str
    error: YardError


def is_spread(spec: Any) -> bool:
    return str(spec.annotations.values.get(SPREAD_ANNOTATION, "")).lower() == "true"


def choose_cluster(
    submit: Submit, actor: Actor, row: ExecutionRow, spec: Any, graph: ExecutionGraph, *, children: Iterable[TaskFit]
) -> ClusterChoice:
    """Choose the cluster of an execution. Raises BadRequest if no cluster, or no one cluster, could ever take it.

    `children`: tasks of the executions that its launch plan nodes start. They count if one cluster takes all tasks
    now; no task of a child makes the choice fail.
    """
    fits = []
    for fit in task_fits(submit, actor, row, spec, graph):
        if isinstance(fit, RefusedTask):
            raise fit.error
        if fit.job.eligibility.outcome is Outcome.REJECT:
            reason = printable_line(fit.job.eligibility.reason)
            raise BadRequest(f"node {fit.node_id} (task {fit.task}) fits no cluster: {reason}")
        fits.append(fit)
    pool, label = spec.cluster_assignment.cluster_pool_name, spec.execution_cluster_label.value
    if fits:
        pool, label = fits[0].job.bounds.pool or "", fits[0].job.bounds.label or ""
    choice = ClusterChoice("") if is_spread(spec) else _choose(row, fits, children)
    return replace(choice, pool=pool, label=label)


def _choose(row: ExecutionRow, fits: Sequence[TaskFit], children: Iterable[TaskFit]) -> ClusterChoice:
    if not fits:
        candidates = {} if row.cluster else common_candidates(list(children))
        # Without any, each child chooses for itself, and waits if it must.
        return ClusterChoice(draw_cluster(row.name, candidates) if candidates else row.cluster)
    ever = set.intersection(*(fit.ever for fit in fits))
    if not ever:
        raise BadRequest(
            f"No one cluster fits all tasks: {'; '.join(_shown(fit) for fit in fits[:TASKS_SHOWN])}.",
            next_step=f"Set the annotation {SPREAD_ANNOTATION}=true: then each node is routed by itself.",
        )
    if row.cluster in ever:
        return ClusterChoice(row.cluster)  # of the parent of a child, or of the execution that it recovers
    candidates = common_candidates([*fits, *children]) or common_candidates(fits)
    if candidates:
        return ClusterChoice(draw_cluster(row.name, candidates))
    if len(ever) == 1:
        return ClusterChoice(next(iter(ever)))  # no other one can take it: its jobs wait there, and say for what
    reasons = {name: fit.later[name] for fit in fits for name in sorted(ever) if name in fit.later}
    shown = [f"{name}: {why}" for name, why in islice(reasons.items(), CLUSTERS_SHOWN)]
    return ClusterChoice("", f"waits for a cluster that takes all tasks: {'; '.join(shown)}")


def common_candidates(fits: Sequence[TaskFit]) -> dict[str, float]:
    """The clusters that can take all tasks now, by name, with the weights of the draw."""
    common = sorted(set.intersection(*(set(fit.now) for fit in fits))) if fits else []
    return {name: fits[0].now[name] for name in common}


def draw_cluster(seed: str, candidates: Mapping[str, float]) -> str:
    return list(candidates)[draw(seed, list(candidates), list(candidates.values()))]


def task_fits(
    submit: Submit, actor: Actor, row: ExecutionRow, spec: Any, graph: ExecutionGraph
) -> Iterator[TaskFit | RefusedTask]:
    """Where each different task of an execution could run. Stores nothing."""
    for node in islice(_different_tasks(graph), TASKS_MAX):
        task = graph.task_of(node)[0].name
        try:
            job = submit.eligibility(actor, _trial(row, spec, graph, node))
        except YardError as exc:
            yield RefusedTask(node.id, task, exc)
            continue
        eligibility = job.eligibility
        later = {one.cluster: one.reason for one in eligibility.verdicts if one.say is Answer.WAIT}
        weights = dict(zip(eligibility.eligible.names, eligibility.eligible.weights, strict=True))
        yield TaskFit(node.id, task, job, weights, later)


def has_tasks(graph: ExecutionGraph) -> bool:
    return next(_different_tasks(graph), None) is not None


def try_first_task(submit: Submit, actor: Actor, row: ExecutionRow, spec: Any, graph: ExecutionGraph) -> Plan:
    """How a job of the first task would be decided. Stores nothing."""
    return submit.plan(actor, _trial(row, spec, graph, next(_different_tasks(graph))))


def _trial(row: ExecutionRow, spec: Any, graph: ExecutionGraph, node: Any) -> JobRequest:
    task, template = graph.task_of(node)
    template = trial_template(template)
    start = TaskStart(
        node_id=node.id, attempt=0, task=task, node=node, inputs=literals_pb2.LiteralMap(), template=template
    )
    return job_request(row, spec, start, template, bundles={}, tree=NO_TREE)


def _different_tasks(graph: ExecutionGraph) -> Iterator[Any]:
    """The task nodes of a graph, one of those that ask for the same."""
    seen: set[tuple[EntityId, bytes, bytes]] = set()
    for workflow in (graph.primary, *graph.subs.values()):
        for node in all_nodes(workflow.template):
            if not node.HasField("task_node"):
                continue
            overrides, limits = node.task_node.overrides, node.metadata.timeout
            key = (graph.task_of(node)[0], overrides.SerializeToString(), limits.SerializeToString())
            if key not in seen:
                seen.add(key)
                yield node


def _shown(fit: TaskFit) -> str:
    names = sorted(fit.ever)
    more = ", …" if len(names) > CLUSTERS_SHOWN else ""
    return f"{fit.task} fits {', '.join(names[:CLUSTERS_SHOWN])}{more}"
