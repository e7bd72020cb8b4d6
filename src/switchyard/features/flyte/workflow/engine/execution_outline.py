"""The nodes of an execution in drawing order: those of the compiled workflow, begun or not, each before those inside.

The engine's ids are used: a node inside another one has the id of the outer node and the number of its attempt in
front (`n0-0-n1`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from switchyard.features.flyte.model.workflow_execution import WorkflowNodeKind
from switchyard.features.flyte.workflow.compile.references import branch_arms, reference_of
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, GraphWorkflow

Dynamics = Mapping[tuple[str, int], ExecutionGraph]  # what dynamic tasks made, by node and attempt


class BegunNode(Protocol):
    """What is stored of a node that has begun or was skipped."""

    @property
    def attempts(self) -> int: ...
    @property
    def is_parent(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class OutlinedNode:
    """One node. `after`: the ids of the nodes that it waits for."""

    id: str
    parent_id: str
    kind: WorkflowNodeKind
    runs: str
    after: tuple[str, ...]
    node: Any
    is_failure_node: bool = False


@dataclass(frozen=True, slots=True)
class _Scope:
    """`bound`: the workflow whose connections hold; of the arms of a branch, the one around. `prefix`: of ids in it."""

    graph: ExecutionGraph
    bound: GraphWorkflow
    prefix: str
    parent_id: str
    outer_prefix: str  # of the nodes that nodes in it wait for


def outline(graph: ExecutionGraph, begun: Mapping[str, BegunNode], dynamics: Dynamics) -> Iterator[OutlinedNode]:
    """Yield the nodes of an execution. Failure nodes are shown once they have begun."""
    yield from _workflow(_Scope(graph, graph.primary, "", "", ""), graph.primary, begun, dynamics)


def _workflow(
    scope: _Scope, workflow: GraphWorkflow, begun: Mapping[str, BegunNode], dynamics: Dynamics
) -> Iterator[OutlinedNode]:
    for node in workflow.nodes:
        yield from _node(scope, node, begun, dynamics)
    failure = workflow.failure_node
    if failure is not None and scope.prefix + failure.id in begun:
        for number, found in enumerate(_node(scope, failure, begun, dynamics)):
            yield replace(found, is_failure_node=number == 0)


def _node(scope: _Scope, node: Any, begun: Mapping[str, BegunNode], dynamics: Dynamics) -> Iterator[OutlinedNode]:
    node_id = scope.prefix + node.id
    state = begun.get(node_id)
    attempt = max(0, state.attempts - 1) if state is not None else 0
    made = dynamics.get((node_id, attempt)) if state is not None and state.is_parent else None
    kind = _kind(node, is_dynamic=made is not None)
    after = tuple(scope.outer_prefix + one for one in scope.bound.upstream.get(node.id, ()))
    yield OutlinedNode(id=node_id, parent_id=scope.parent_id, kind=kind, runs=_runs(node), after=after, node=node)
    prefix = f"{node_id}-{attempt}-"
    if made is not None:
        yield from _workflow(_Scope(made, made.primary, prefix, node_id, prefix), made.primary, begun, dynamics)
    elif kind is WorkflowNodeKind.WORKFLOW:
        sub = scope.graph.sub_of(node)
        yield from _workflow(_Scope(scope.graph, sub, prefix, node_id, prefix), sub, begun, dynamics)
    elif kind is WorkflowNodeKind.BRANCH:
        inner = replace(scope, prefix=prefix, parent_id=node_id)  # arms wait for nodes around the branch
        for arm in branch_arms(node.branch_node):
            yield from _node(inner, arm, begun, dynamics)


def _kind(node: Any, *, is_dynamic: bool) -> WorkflowNodeKind:
    target = node.WhichOneof("target")
    if target == "workflow_node":
        is_plan = node.workflow_node.HasField("launchplan_ref")
        return WorkflowNodeKind.LAUNCH_PLAN if is_plan else WorkflowNodeKind.WORKFLOW
    if target == "task_node":
        return WorkflowNodeKind.DYNAMIC if is_dynamic else WorkflowNodeKind.TASK
    kinds = {"array_node": WorkflowNodeKind.MAP, "branch_node": WorkflowNodeKind.BRANCH}
    return kinds.get(target, WorkflowNodeKind.GATE)


def _runs(node: Any) -> str:
    """The name of the entity that a node runs; of a gate, what it waits for."""
    target = node.WhichOneof("target")
    if target == "gate_node":
        gate = node.gate_node
        if gate.HasField("sleep"):
            return f"sleep {gate.sleep.duration.ToJsonString()}"
        return f"approve {gate.approve.signal_id}" if gate.HasField("approve") else f"signal {gate.signal.signal_id}"
    reference = reference_of(node.array_node.node if target == "array_node" else node)
    return reference.name if reference is not None else ""
