"""All kinds of nodes that the engine can run, by what a node of Flyte's says it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.features.flyte.workflow.node_kinds.branch import BranchKind, SubWorkflowKind
from switchyard.features.flyte.workflow.node_kinds.gate import GateKind
from switchyard.features.flyte.workflow.node_kinds.kind import EngineNodeKind
from switchyard.features.flyte.workflow.node_kinds.single_attempt import LaunchPlanKind, MapKind
from switchyard.features.flyte.workflow.node_kinds.task import TaskKind

KINDS: Mapping[str | None, EngineNodeKind] = {
    "array_node": MapKind(),
    "task_node": TaskKind(),
    "launchplan_ref": LaunchPlanKind(),
    "sub_workflow_ref": SubWorkflowKind(),
    "branch_node": BranchKind(),
    "gate_node": GateKind(),
}


def kind_of(node: Any) -> EngineNodeKind:
    """The kind of a node. KeyError: it cannot run here; `execution_checks.unserved_parts` refuses it before."""
    target = node.WhichOneof("target")
    return KINDS[node.workflow_node.WhichOneof("reference") if target == "workflow_node" else target]
