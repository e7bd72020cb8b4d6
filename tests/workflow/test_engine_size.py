"""The engine with many nodes: a step costs as much as has changed, and one step never begins all."""

from __future__ import annotations

import time

import pytest

from switchyard.features.flyte.workflow.engine.engine import step
from switchyard.features.flyte.workflow.engine.engine_run import CHANGES_MAX
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    ExecutionPhase,
    ExecutionState,
    NodePhase,
    NodeProgress,
    NodeTable,
)
from tests.workflow.builders import a_template, task_node
from tests.workflow.engine_runs import PATIENT, Run, graph_of, literals

MANY = 10_000


def chain(length: int) -> ExecutionGraph:
    later = (task_node(f"n{number}", "add", a=f"@n{number - 1}.o0", b=1) for number in range(1, length))
    return graph_of(a_template(task_node("n0", "one"), *later))


def step_s(length: int) -> float:
    """The time of a step in the middle of a chain: one node has ended, and the next one starts."""
    ended = [
        NodeProgress(f"n{number}", "", f"n{number}", NodePhase.SUCCEEDED, attempts=1, outputs=literals(o0=1))
        for number in range(length // 2)
    ]
    last = NodeProgress(f"n{length // 2}", "", f"n{length // 2}", NodePhase.RUNNING, attempts=1)
    graph, table = chain(length), NodeTable([*ended, last])
    state = ExecutionState(ExecutionPhase.RUNNING, literals(), table, is_due=False)
    events = [AttemptEnd(last.node_id, 0, literals(o0=1))]
    times = []
    for _ in range(20):
        began = time.perf_counter()
        engine_step = step(graph, state, events)
        times.append(time.perf_counter() - began)
        assert [start.node_id for start in engine_step.starts] == [f"n{length // 2 + 1}"]
    return min(times)


@pytest.mark.long
def test_a_step_among_many_nodes_costs_what_one_among_few_costs() -> None:
    assert step_s(MANY) < 10 * step_s(100)


def test_one_step_begins_a_bounded_number_of_nodes_and_asks_for_another_one() -> None:
    run = Run(graph_of(a_template(*(task_node(f"n{number}", "one") for number in range(CHANGES_MAX + 5)))))
    assert len(run.step()) == CHANGES_MAX
    assert run.is_due
    assert len(run.step()) == 5
    assert not run.is_due
    for number in range(CHANGES_MAX + 5):
        assert run.phase is ExecutionPhase.RUNNING
        run.end(f"n{number}")
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_one_step_skips_a_bounded_number_of_nodes() -> None:
    later = (task_node(f"n{number}", "add", a="@n0.o0", b=1) for number in range(1, CHANGES_MAX + 10))
    template = a_template(task_node("n0", "one"), *later)
    template.metadata.on_failure = PATIENT
    run = Run(graph_of(template))
    run.step()
    run.fail("n0")
    assert (len(run.nodes), run.phase, run.is_due) == (CHANGES_MAX, ExecutionPhase.RUNNING, True)
    run.step()
    assert (len(run.nodes), run.phase) == (CHANGES_MAX + 10, ExecutionPhase.FAILED)
