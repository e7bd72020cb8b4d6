"""Checks and compiles the workflow that a dynamic task left, as if the owner of the execution registered it.

A task decides freely what it writes. So its workflow may only name what the owner may read, and bring only tasks of the
dynamic task's own project and domain or of one where the owner may register tasks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from switchyard.errors import YardError
from switchyard.features.flyte.service.entities.entity_reads import read_task
from switchyard.features.flyte.service.entities.known_signatures import find_signatures
from switchyard.features.flyte.service.entities.node_limit import refuse_many_nodes
from switchyard.features.flyte.service.entities.registration import CLOSURE_BYTES_MAX, task_limits
from switchyard.features.flyte.service.entities.scope import require_write
from switchyard.features.flyte.service.executions.calls.graphs import find_entity
from switchyard.features.flyte.workflow.compile.compiler import WorkflowSource, compile_workflow, count_nodes
from switchyard.features.flyte.workflow.compile.dynamic_workflow import (
    DYNAMIC_DEPTH_MAX,
    BadFutures,
    FuturesFile,
    build_failure,
    constant_outputs,
    read_futures,
)
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.compile.references import references
from switchyard.features.flyte.workflow.compile.signature import of_interface
from switchyard.features.flyte.workflow.compile.task_checks import task_mistakes
from switchyard.features.flyte.workflow.engine.execution_checks import unserved_parts
from switchyard.features.flyte.workflow.engine.execution_graph import count_nodes_to_run, read_graph
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, DynamicWorkflow
from switchyard.features.flyte.workflow.engine.run_ids import NODE_ID_BYTES_MAX, longest_node_id, run_id_mistakes
from switchyard.features.flyte.workflow.values.nesting import check_task_depth, check_workflow_depth
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

MISTAKES_SHOWN = 5


def with_dynamic(
    context: Context, owner: Actor, end: AttemptEnd, task: EntityId, template: Any, *, nodes: int, depth: int
) -> AttemptEnd:
    """The end of an attempt with the workflow that it left, compiled; or with the reason why that cannot run.

    `nodes`: that the execution has already. `depth`: dynamic workflows that the node is inside of.
    Raises Unavailable if the database is away.
    """
    assert end.futures is not None
    try:
        if depth >= DYNAMIC_DEPTH_MAX:
            raise BadFutures(f"more than {DYNAMIC_DEPTH_MAX} dynamic workflows are inside each other")
        futures = read_futures(end.futures, task, template, end.node_id)
        if not futures.template.nodes:
            return replace(end, futures=None, outputs=constant_outputs(futures))
        dynamic = _compile(context, owner, futures, task, node_id=end.node_id, nodes=nodes)
    except BadFutures as exc:
        return replace(end, futures=None, failure=build_failure(str(exc)))
    except YardError as exc:
        if exc.transient:
            raise
        return replace(end, futures=None, failure=build_failure(exc.detail))
    return replace(end, futures=None, dynamic=dynamic)


def _compile(
    context: Context, owner: Actor, futures: FuturesFile, parent: EntityId, *, node_id: str, nodes: int
) -> DynamicWorkflow:
    template, subs = futures.template, futures.sub_workflows
    check_workflow_depth(template, subs)
    refuse_many_nodes(context, nodes + count_nodes(template, subs))
    _check_tasks(context, owner, futures, parent)
    named = references([template, *subs])
    brought = {task: of_interface(one.interface) for task, one in futures.tasks.items()}
    known = {**find_signatures(context, owner, named - set(brought)), **brought}
    closure, mistakes = compile_workflow(WorkflowSource(template, subs, known))
    if closure is None:
        raise BadFutures(f"the workflow that the task made does not compile: {mistakes.as_text()[:2000]}")
    for entry in closure.tasks:
        task = read_id(entry.template.id, EntityKind.TASK)
        found = futures.tasks.get(task)
        entry.template.CopyFrom(found if found is not None else read_task(find_entity(context, task).body, task))
    if closure.ByteSize() > CLOSURE_BYTES_MAX:
        raise BadFutures(f"the workflow has {closure.ByteSize()} bytes with its tasks; the most is {CLOSURE_BYTES_MAX}")
    _refuse([*islice(run_id_mistakes(closure), MISTAKES_SHOWN), *islice(unserved_parts(closure), MISTAKES_SHOWN)])
    graph = read_graph(closure)
    refuse_many_nodes(context, nodes + count_nodes_to_run(graph))
    if len(node_id.encode()) + longest_node_id(graph) > NODE_ID_BYTES_MAX:
        raise BadFutures("dynamic workflows are nested so deeply that the ids of the inner nodes become too long")
    return DynamicWorkflow(graph, closure)


def _check_tasks(context: Context, owner: Actor, futures: FuturesFile, parent: EntityId) -> None:
    for project, domain in {(task.project, task.domain) for task in futures.tasks}:
        if (project, domain) != (parent.project, parent.domain):
            require_write(context, owner, project, domain)
    for task, template in futures.tasks.items():
        check_task_depth(template)
        mistakes = task_mistakes(template, task_limits(context, task))
        _refuse([f"task {task.name[:80]}: {one}" for one in islice(mistakes, MISTAKES_SHOWN)])


def _refuse(mistakes: list[str]) -> None:
    if mistakes:
        raise BadFutures("the workflow that the task made cannot run: " + "; ".join(mistakes))
