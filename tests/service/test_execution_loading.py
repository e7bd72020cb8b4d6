"""How many nodes an execution is going to have: those that have begun, and those of dynamic workflows that run."""

from __future__ import annotations

from switchyard.service.executions.loading import KeptNodes, promised_nodes
from switchyard.workflow.execution_state import NodePhase, NodeProgress, NodeTable
from tests.workflow.builders import a_template, sub_node, task_node
from tests.workflow.engine_runs import graph_of


def a_state(node_id: str, parent_id: str, phase: NodePhase = NodePhase.RUNNING, attempts: int = 1) -> NodeProgress:
    return NodeProgress(node_id, parent_id, node_id.rpartition("-")[2], phase, attempts=attempts)


def test_nodes_of_dynamic_workflows_count_before_they_begin() -> None:
    inner = a_template(task_node("n0", "one"), task_node("n1", "one"), name="inner")
    outer = graph_of(a_template(task_node("dn0", "one"), sub_node("dn1", "inner"), name="made"), inner)  # 4 nodes
    small = graph_of(a_template(task_node("dn0", "one"), name="made"))
    running = NodePhase.DYNAMIC_RUNNING
    states = [
        a_state("n0", "", running, attempts=2),
        a_state("n0-0-dn0", "n0", NodePhase.FAILED),  # of an attempt that is over
        a_state("n0-1-dn1", "n0"),
        a_state("n0-1-dn1-0-n0", "n0-1-dn1", running),
        a_state("n1", "", NodePhase.SUCCEEDED),
    ]
    dynamics = {("n0", 0): outer, ("n0", 1): outer, ("n0-1-dn1-0-n0", 0): small, ("n1", 0): outer}
    kept = KeptNodes(1, NodeTable(states), 0, dynamics)
    assert promised_nodes(kept) == 5 + (4 - 3) + 1
    assert promised_nodes(KeptNodes(1, NodeTable(), 0)) == 0
