"""The graph of an execution: a compiled workflow with its parts. Of a task: a workflow of one node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

from flyteidl.core import workflow_pb2

from switchyard.features.flyte.workflow.compile.compiler import WorkflowSource, compile_workflow
from switchyard.features.flyte.workflow.compile.connections import END, START
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id, to_message
from switchyard.features.flyte.workflow.compile.references import all_nodes, reference_of, with_inner_nodes
from switchyard.features.flyte.workflow.compile.signature import of_interface

TASK_WORKFLOW_PREFIX = ".flytegen."
NODE_ID_CHARS_MAX = 63


@dataclass(frozen=True)
class GraphWorkflow:
    """One compiled workflow. `nodes`: without start and end, each after all nodes that it waits for."""

    template: Any
    nodes: tuple[Any, ...]
    upstream: Mapping[str, tuple[str, ...]]
    outputs: tuple[Any, ...]  # the bindings of the end node

    @cached_property
    def by_id(self) -> Mapping[str, Any]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def followers(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes to look at when a node has ended. A branch stands for the nodes inside it."""
        followers: dict[str, dict[str, None]] = {}
        for node in self.nodes:
            for inner in with_inner_nodes(node):
                for other in self.upstream.get(inner.id, ()):
                    followers.setdefault(other, {})[node.id] = None
        return {node_id: tuple(ids) for node_id, ids in followers.items()}

    @property
    def failure_node(self) -> Any | None:
        """The node that runs after the workflow has failed."""
        return self.template.failure_node if self.template.HasField("failure_node") else None


@dataclass(frozen=True)
class ExecutionGraph:
    """Read once and kept: an entity never changes."""

    primary: GraphWorkflow
    subs: Mapping[EntityId, GraphWorkflow]
    tasks: Mapping[EntityId, Any] = field(default_factory=dict)  # templates

    def task_of(self, node: Any) -> tuple[EntityId, Any]:
        task = read_id(node.task_node.reference_id, EntityKind.TASK)
        return task, self.tasks[task]

    def sub_of(self, node: Any) -> GraphWorkflow:
        return self.subs[read_id(node.workflow_node.sub_workflow_ref, EntityKind.WORKFLOW)]

    def inputs_of(self, node: Any) -> Mapping[str, Any]:
        """What a node that runs a task or a sub-workflow takes, by name."""
        target = node.WhichOneof("target")
        if target == "task_node":
            return dict(self.task_of(node)[1].interface.inputs.variables)
        if target == "workflow_node" and node.workflow_node.HasField("sub_workflow_ref"):
            return dict(self.sub_of(node).template.interface.inputs.variables)
        return {}


def read_graph(closure: Any) -> ExecutionGraph:
    """`closure`: compiled, with the templates of its tasks."""
    subs = {read_id(sub.template.id, EntityKind.WORKFLOW): _read_workflow(sub) for sub in closure.sub_workflows}
    tasks = {read_id(task.template.id, EntityKind.TASK): task.template for task in closure.tasks}
    return ExecutionGraph(_read_workflow(closure.primary), subs, tasks)


def count_nodes_to_run(graph: ExecutionGraph) -> int:
    """How many nodes an execution has at most: those of a sub-workflow for each node that runs it, all arms too."""
    uses = {sub_id: _sub_ids(sub) for sub_id, sub in graph.subs.items()}
    counts: dict[EntityId, int] = {}
    for sub_id in TopologicalSorter(uses).static_order():  # compiled: none contains itself
        counts[sub_id] = _own_nodes(graph.subs[sub_id]) + sum(counts[used] for used in uses[sub_id])
    return _own_nodes(graph.primary) + sum(counts[used] for used in _sub_ids(graph.primary))


def task_closure(task: EntityId, template: Any) -> Any:
    """The workflow of one node that an execution of a task runs, compiled. As in Flyte, it is named after the task."""
    workflow = workflow_pb2.WorkflowTemplate(id=to_message(task_workflow_id(task)))
    workflow.metadata.SetInParent()
    workflow.interface.CopyFrom(template.interface)
    node = workflow.nodes.add(id=task_node_id(task))
    node.task_node.reference_id.CopyFrom(to_message(task))
    node.metadata.name = node.id
    for name in sorted(template.interface.inputs.variables):
        binding = node.inputs.add(var=name)
        binding.binding.promise.var = name
    for name in sorted(template.interface.outputs.variables):
        binding = workflow.outputs.add(var=name)
        binding.binding.promise.node_id = node.id
        binding.binding.promise.var = name
    known = {task: of_interface(template.interface)}
    closure, mistakes = compile_workflow(WorkflowSource(workflow, (), known))
    assert closure is not None, mistakes.as_text()
    closure.tasks[0].template.CopyFrom(template)
    return closure


def task_workflow_id(task: EntityId) -> EntityId:
    name = f"{TASK_WORKFLOW_PREFIX}{task.name}"
    return EntityId(EntityKind.WORKFLOW, task.project, task.domain, name, task.version)


def task_node_id(task: EntityId) -> str:
    """Flyte's rule: letters, digits and `-` of the task's name, the last 63."""
    return re.sub(r"[^A-Za-z0-9-]", "", task.name)[-NODE_ID_CHARS_MAX:] or "task"


def _read_workflow(compiled: Any) -> GraphWorkflow:
    upstream = {
        node_id: tuple(one for one in ids.ids if one != START) for node_id, ids in compiled.connections.upstream.items()
    }
    by_id = {node.id: node for node in compiled.template.nodes if node.id not in (START, END)}
    order = TopologicalSorter({node_id: upstream.get(node_id, ()) for node_id in by_id}).static_order()
    end = next((node for node in compiled.template.nodes if node.id == END), None)
    return GraphWorkflow(
        compiled.template,
        tuple(by_id[node_id] for node_id in order if node_id in by_id),
        upstream,
        tuple(end.inputs) if end is not None else (),
    )


def _own_nodes(workflow: GraphWorkflow) -> int:
    return sum(1 for node in all_nodes(workflow.template) if node.id not in (START, END))


def _sub_ids(workflow: GraphWorkflow) -> list[EntityId]:
    """The sub-workflows that its nodes run; one that two nodes run comes twice."""
    found = (reference_of(node) for node in all_nodes(workflow.template))
    return [one for one in found if one is not None and one.kind is EntityKind.WORKFLOW]
