"""The tasks of the executions that launch plan nodes start, as far as they are known before these run.

They count when the cluster of the parent is chosen, so that its children can stay there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import structs

from switchyard.errors import YardError
from switchyard.features.flyte.service.executions.calls.launch_targets import (
    fill_from_plan,
    find_target,
    inherited_spec,
)
from switchyard.features.flyte.service.executions.nodes.placement import TaskFit, is_spread, task_fits
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.compile.references import all_nodes
from switchyard.features.flyte.workflow.engine.execution_checks import data_of_tasks
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, read_graph
from switchyard.features.flyte.workflow.engine.node_job import CLUSTER_FOLDER
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.submit.submit import Submit

PLANS_MAX = 50  # different launch plans, with those that the workflows of others start
TASKS_MAX = 200  # different tasks of all of them: about 0.2 seconds


def child_fits(
    submit: Submit, actor: Actor, row: ExecutionRow, spec: Any, graph: ExecutionGraph, *, context: Context
) -> Iterator[TaskFit]:
    """Where the tasks of children could run. Tasks that no cluster takes are left out: the child tells of them."""
    fits = (
        fit
        for child_row, child_spec, child_graph in _children(context, actor, row, spec, graph)
        for fit in task_fits(submit, actor, child_row, child_spec, child_graph)
    )
    return islice((fit for fit in fits if isinstance(fit, TaskFit) and fit.ever), TASKS_MAX)


def _children(
    context: Context, actor: Actor, row: ExecutionRow, spec: Any, graph: ExecutionGraph
) -> Iterator[tuple[ExecutionRow, Any, ExecutionGraph]]:
    """The executions that would begin, and those that these would start: a row, a spec and a graph of each."""
    parents, seen = deque([(spec, graph)]), set[EntityId]()
    while parents:
        parent_spec, parent_graph = parents.popleft()
        for plan in _launch_plans(parent_graph):
            if plan in seen or len(seen) >= PLANS_MAX:
                continue
            seen.add(plan)
            child_spec = inherited_spec(parent_spec, plan)
            try:
                target = find_target(context, actor, child_spec)
            except YardError:
                continue  # gone, or not for this user: the child tells of it
            fill_from_plan(child_spec, target.plan)
            data = child_spec.raw_output_data_config
            if not data.output_location_prefix and next(data_of_tasks(target.closure), ""):
                data.output_location_prefix = CLUSTER_FOLDER
            workflow, child_graph = target.workflow, read_graph(target.closure)
            child_row = structs.replace(
                row, entity_kind=plan.kind.value, entity_name=plan.name, workflow_name=workflow.name
            )
            if not is_spread(child_spec):
                yield child_row, child_spec, child_graph
            parents.append((child_spec, child_graph))


def _launch_plans(graph: ExecutionGraph) -> Iterator[EntityId]:
    for workflow in (graph.primary, *graph.subs.values()):
        for node in all_nodes(workflow.template):
            if node.workflow_node.HasField("launchplan_ref"):
                yield read_id(node.workflow_node.launchplan_ref, EntityKind.LAUNCH_PLAN)
