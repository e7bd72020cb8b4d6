"""What the driver reads of an execution: its nodes, and how many it is going to have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from switchyard.features.flyte.service.executions.driving import loading
from switchyard.features.flyte.service.executions.driving.driver import ExecutionDriver
from switchyard.features.flyte.service.executions.driving.loading import CachedNodes, promised_nodes
from switchyard.features.flyte.store.executions.execution_nodes import NodeRow
from switchyard.features.flyte.workflow.engine.execution_state import NodePhase, NodeProgress, NodeTable
from switchyard.store.engine.database import Tx
from tests.service.executions.bed import ExecutionBed
from tests.service.rig import Rig
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
    cached = CachedNodes(1, NodeTable(states), 0, dynamics)
    assert promised_nodes(cached) == 5 + (4 - 3) + 1
    assert promised_nodes(CachedNodes(1, NodeTable(), 0)) == 0


def test_nodes_are_parsed_after_the_transaction_that_reads_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends transactions that are idle: the nodes of a large execution take long to parse."""
    bed = ExecutionBed(rig)
    bed.wide("wide", 3)
    bed.create("wide", "e")
    bed.drive()
    for lease in bed.lease():
        bed.succeed(lease)
    database, read, parse = rig.context.database, rig.context.database.read, loading.node_state
    open_now: list[bool] = []

    @contextmanager
    def reading() -> Iterator[Tx]:
        with read() as tx:
            open_now.append(True)
            yield tx
            open_now.pop()

    parsed: list[bool] = []

    def parsing(row: NodeRow) -> NodeProgress:
        parsed.append(bool(open_now))
        return parse(row)

    monkeypatch.setattr(database, "read", reading)
    monkeypatch.setattr(loading, "node_state", parsing)
    bed.driver = ExecutionDriver(rig.submits)  # it knows no nodes
    bed.drive()
    assert parsed == [False] * 3
    assert bed.phase("e") == "SUCCEEDED"
