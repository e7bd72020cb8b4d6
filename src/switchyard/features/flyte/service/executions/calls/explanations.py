"""Explain an execution: where it runs and how that was chosen, each cluster's verdict for each task, and why it waits.

Verdicts and candidates are those of now: the decision itself is not kept, but it can be repeated. It goes by the rights
of the owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from switchyard.features.flyte.model.workflow_execution import (
    ClusterWeight,
    ExecutionExplanation,
    ExecutionNode,
    NodeWait,
    TaskVerdicts,
)
from switchyard.features.flyte.service.executions.calls.execution_lists import listed
from switchyard.features.flyte.service.executions.calls.graphs import closure_of
from switchyard.features.flyte.service.executions.calls.reads import get_execution
from switchyard.features.flyte.service.executions.calls.visible import ExecutionSight
from switchyard.features.flyte.service.executions.nodes.child_placement import child_fits
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.service.executions.nodes.node_outlines import node_page
from switchyard.features.flyte.service.executions.nodes.placement import (
    SPREAD_ANNOTATION,
    RefusedTask,
    TaskFit,
    common_candidates,
    draw_cluster,
    is_spread,
    task_fits,
)
from switchyard.features.flyte.store.executions.executions import CHILD_MODE, ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_graph import read_graph
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.model.cluster.verdict import Outcome, Verdict
from switchyard.model.rules.attributes import JobPolicy
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.service.submit.submit import Submit

TASKS_SHOWN_MAX = 50
CLUSTERS_SHOWN_MAX = 200
WAITS_SHOWN_MAX = 50
NODES_READ_MAX = 2000  # the first ones; a node that waits is seldom behind so many


def explain_execution(context: Context, actor: Actor, key: ExecutionKey) -> ExecutionExplanation:
    view = get_execution(context, actor, key)
    row, spec = view.row, read_spec(view.row)
    visibility = Visibility(context, actor)
    sight = ExecutionSight(visibility, row)
    owner = owner_of(context.snapshots.access, row.owner_id, row.owner)
    graph = read_graph(closure_of(context, row))
    submit = Submit(context)
    tasks = list(islice(task_fits(submit, owner, row, spec, graph), TASKS_SHOWN_MAX))
    fits = [one for one in tasks if isinstance(one, TaskFit)]
    candidates: dict[str, float] = {}
    if len(fits) == len(tasks) and not is_spread(spec):
        children = child_fits(submit, owner, row, spec, graph, context=context)
        candidates = common_candidates([*fits, *children]) or common_candidates(fits)
    drawn = draw_cluster(row.name, candidates) if candidates else ""
    policy = msgspec.json.decode(fits[0].job.rules, type=JobPolicy) if fits else None
    shown = [ClusterWeight(name, weight) for name, weight in candidates.items() if sight.cluster(name)]
    return ExecutionExplanation(
        execution=listed(visibility, row, view.clusters),
        how=sight.text(_how(row, spec, fits, is_only=list(candidates) == [row.cluster])),
        seed=row.name,
        candidates=shown[:CLUSTERS_SHOWN_MAX],
        drawn=sight.cluster(drawn),
        tasks=[_task_verdicts(sight, one) for one in tasks],
        policy=visibility.policy(row, policy),
        waits=_waits(context, actor, row),
        notes=[sight.text(note) for note in _notes(row, spec, tasks, drawn=drawn)],
    )


def _how(row: ExecutionRow, spec: Any, fits: Sequence[TaskFit], *, is_only: bool) -> str:
    pinned = spec.metadata.system_metadata.execution_cluster
    if is_spread(spec):
        return f"each node is routed by itself (annotation {SPREAD_ANNOTATION}=true)"
    if not fits and not row.cluster:
        return "it has no task that needs a cluster, as far as is known before it runs"
    if not row.cluster:
        is_over = ExecutionPhase(row.phase).is_final
        return "no cluster was chosen" if is_over else "no cluster takes all of its tasks now; it waits for one"
    if pinned:
        return f"the data of its tasks is in a folder of {pinned}, so all nodes run there"
    if row.mode == CHILD_MODE:
        return f"{row.cluster} is the cluster of the execution that started it, or else was drawn on its name"
    if is_only:
        return f"{row.cluster} is the only cluster that takes all of its tasks"
    return f"{row.cluster} was drawn on the name {row.name} among the clusters that take all of its tasks, by weight"


def _task_verdicts(sight: ExecutionSight, task: TaskFit | RefusedTask) -> TaskVerdicts:
    if isinstance(task, RefusedTask):
        return TaskVerdicts(task.node_id, task.task, refused=sight.text(task.error.detail))
    eligibility = task.job.eligibility
    verdicts = islice((one for one in eligibility.verdicts if sight.cluster(one.cluster)), CLUSTERS_SHOWN_MAX)
    return TaskVerdicts(
        task.node_id,
        task.task,
        [_visible(sight, one) for one in verdicts],
        reason=sight.text(eligibility.reason) if eligibility.outcome is Outcome.REJECT else "",
    )


def _visible(sight: ExecutionSight, verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, reason=sight.text(verdict.reason))


def _notes(row: ExecutionRow, spec: Any, tasks: Sequence[TaskFit | RefusedTask], *, drawn: str) -> list[str]:
    notes = []
    is_free = not spec.metadata.system_metadata.execution_cluster and row.mode != CHILD_MODE
    if row.cluster and drawn and drawn != row.cluster and is_free:
        notes.append(f"a draw of now would give {drawn}: clusters, weights, the pool or rules have changed since")
    if len(tasks) >= TASKS_SHOWN_MAX:
        notes.append(f"of its different tasks the first {TASKS_SHOWN_MAX} are shown")
    if row.phase in (ExecutionPhase.ABORTING, ExecutionPhase.ABORTED):
        notes.append(f"terminated by {row.abort_by}" + (f": {row.abort_cause}" if row.abort_cause else ""))
    return notes


def _waits(context: Context, actor: Actor, row: ExecutionRow) -> list[NodeWait]:
    """The nodes that wait for something else than other nodes of the execution."""
    if ExecutionPhase(row.phase).is_final:
        return []
    nodes = node_page(context, actor, row.key, offset=0, limit=NODES_READ_MAX).items
    waiting = (node for node in nodes if node.waits and not node.is_behind)
    return [_node_wait(node) for node in islice(waiting, WAITS_SHOWN_MAX)]


def _node_wait(node: ExecutionNode) -> NodeWait:
    return NodeWait(node.id, node.waits, node.attempts[-1].job if node.attempts else "")
