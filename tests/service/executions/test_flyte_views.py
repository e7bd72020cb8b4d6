"""What Flyte's calls tell of executions besides their phases: decks, and where the time went."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import execution_pb2, node_execution_pb2

from switchyard.features.flyte.server import executions, node_executions
from switchyard.features.flyte.service.executions.calls import decks
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.lifecycle import ObservedState
from tests.service.entities.requests import DOMAIN, PROJECT
from tests.service.executions.bed import ExecutionBed, outputs_file
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import task_node

CHAIN = [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)]
HERE = {"project": PROJECT, "domain": DOMAIN, "name": "e"}


def run_chain(rig: Rig) -> ExecutionBed:
    """The first task leaves a deck, the second one none."""
    bed = ExecutionBed(rig)
    bed.flow("chain", CHAIN)
    bed.create("chain", "e")
    for more in ({"deck.html": b"<b>facts</b>"}, {}):
        bed.drive()
        (lease,) = bed.lease()
        rig.clock.wait(5)
        bed.agents["c1"].report(AttemptRef(lease.job, lease.fence), ObservedState.RUNNING)
        rig.clock.wait(3)
        bed.leave(lease, {**outputs_file(7), **more})
        rig.clock.wait(2)
    bed.drive()
    assert bed.phase("e") == "SUCCEEDED"
    return bed


def deck_uris(rig: Rig) -> list[str]:
    request = node_execution_pb2.NodeExecutionListRequest(limit=10, workflow_execution_id=HERE)
    listed = node_executions.list_nodes(rig.context, ADMIN, request).node_executions
    shown = {node.id.node_id: node.closure.deck_uri for node in listed}
    for node in listed:
        one = node_executions.get_node(rig.context, ADMIN, node_execution_pb2.NodeExecutionGetRequest(id=node.id))
        assert one.closure.deck_uri == node.closure.deck_uri
    return [shown["n0"], shown["n1"]]


def test_a_node_names_the_deck_that_its_task_left(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(decks, "_answers", {})
    run_chain(rig)
    with monkeypatch.context() as away:
        away.setattr(decks, "read_output_folders", lambda context, roots: {})
        assert deck_uris(rig) == ["", ""], "a store that is away hides decks, not nodes"
    assert deck_uris(rig) == [f"flyte://v1/{PROJECT}/{DOMAIN}/e/n0/d", ""]


def spans(rig: Rig, depth: int) -> Any:
    request = execution_pb2.WorkflowExecutionGetMetricsRequest(id=HERE, depth=depth)
    return executions.get_metrics(rig.context, ADMIN, request).span


def words(span: Any) -> Any:
    """A span by its name, its seconds and those inside it."""
    kind = span.WhichOneof("id")
    name = {"workflow_id": "execution", "node_id": span.node_id.node_id, "task_id": "task"}.get(kind, span.operation_id)
    seconds = span.end_time.ToSeconds() - span.start_time.ToSeconds()
    return (name, seconds, [words(one) for one in span.spans]) if span.spans else (name, seconds)


def test_metrics_of_an_execution_say_where_its_time_went(rig: Rig) -> None:
    run_chain(rig)
    assert words(spans(rig, 0)) == ("execution", 20)
    task = ("task", 8, [("TASK_SETUP", 5), ("TASK_RUNTIME", 3)])
    node = [("NODE_SETUP", 0), task, ("NODE_TEARDOWN", 2)]
    assert words(spans(rig, -1)) == (
        "execution",
        20,
        [("WORKFLOW_SETUP", 0), ("n0", 10, node), ("n1", 10, node), ("WORKFLOW_TEARDOWN", 0)],
    )
    assert words(spans(rig, 1))[2] == [("WORKFLOW_SETUP", 0), ("n0", 10), ("n1", 10), ("WORKFLOW_TEARDOWN", 0)]


def test_metrics_of_an_execution_that_goes_on_have_open_ends(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.flow("chain", CHAIN)
    bed.create("chain", "e")
    assert not spans(rig, -1).spans[0].HasField("end_time"), "it waits to begin"
    bed.drive()
    span = spans(rig, -1)
    assert not span.HasField("end_time")
    assert [one.WhichOneof("id") for one in span.spans] == ["operation_id", "node_id"]
