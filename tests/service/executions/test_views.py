"""Executions as our own API shows, explains and creates them, and what is counted of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from flyteidl.admin import cluster_assignment_pb2, common_pb2
from flyteidl.core import workflow_pb2

from switchyard.errors import BadRequest, BadValue, Conflict, Denied, NotFound, YardError
from switchyard.features.flyte.model.workflow_execution import CreatedExecution, ExecutionNode, LaunchRequest
from switchyard.features.flyte.service.executions.calls import changes, reads
from switchyard.features.flyte.service.executions.calls.execution_counts import ExecutionTally, count_live
from switchyard.features.flyte.service.executions.calls.execution_lists import execution_details, execution_page
from switchyard.features.flyte.service.executions.calls.explanations import explain_execution
from switchyard.features.flyte.service.executions.driving import loading
from switchyard.features.flyte.service.executions.driving.launches import launch
from switchyard.features.flyte.service.executions.nodes.node_outlines import node_page
from switchyard.features.flyte.store.executions import execution_pages
from switchyard.features.flyte.store.executions.execution_pages import ExecutionFilter
from switchyard.features.flyte.store.executions.executions import ExecutionKey
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import layout
from switchyard.service.rules.attributes import UNCONDITIONAL
from tests.builders import a_graph
from tests.service.entities.requests import DOMAIN, PROJECT
from tests.service.executions.bed import ExecutionBed, cordon
from tests.service.lines import pool as put_pool
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import gate_node, task_node

SPREAD = common_pb2.Annotations(values={"switchyard/spread": "true"})
CHAIN = [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)]


def key(name: str = "e") -> ExecutionKey:
    return ExecutionKey(PROJECT, DOMAIN, name)


def names(rig: Rig, actor: Any = ADMIN, **fields: Any) -> list[str]:
    page = execution_page(rig.context, actor, ExecutionFilter(**fields), before=None, limit=100)
    return [one.name for one in page.items]


def nodes(rig: Rig, name: str = "e", **fields: Any) -> dict[str, ExecutionNode]:
    page = node_page(rig.context, ADMIN, key(name), **{"offset": 0, "limit": 100, **fields})
    return {node.id: node for node in page.items}


def pool(name: str) -> Any:
    return cluster_assignment_pb2.ClusterAssignment(cluster_pool_name=name)


def test_lists_are_newest_first_in_pages_and_filters_apply(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.add_cluster("c2")
    put_pool(rig, "lab", c2=1)
    bed.wide("wide", 2)
    for name in ("e0", "e1", "e2"):
        bed.create("wide", name)
    bed.create("wide", "e3", cluster_assignment=pool("lab"))
    bed.create("wide", "e4", annotations=SPREAD)
    bed.drive()
    changes.terminate(rig.context, ADMIN, key("e0"), "no need")
    changes.set_archived(rig.context, ADMIN, key("e1"), 1)
    assert names(rig) == ["e4", "e3", "e2", "e0"]
    assert names(rig, with_archived=True) == ["e4", "e3", "e2", "e1", "e0"]
    assert names(rig, phases=["ABORTING", "FAILED"]) == ["e0"]
    assert names(rig, pool="lab") == ["e3"]
    assert names(rig, project="other") == []
    assert names(rig, launched="wide", domain=DOMAIN, owner=ADMIN.name) == ["e4", "e3", "e2", "e0"]
    assert set(names(rig, cluster="c2")) >= {"e3"}
    first = execution_page(rig.context, ADMIN, ExecutionFilter(), before=None, limit=2)
    second = execution_page(rig.context, ADMIN, ExecutionFilter(), before=first.next, limit=2)
    assert [one.name for one in (*first.items, *second.items)] == ["e4", "e3", "e2", "e0"]
    assert second.next is None


def test_a_page_reads_a_bounded_number_of_rows(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("wide", 1)
    for number in range(6):
        bed.create("wide", f"e{number}")
    wanted = ExecutionFilter(phases=["FAILED"])
    with rig.context.database.read() as tx:
        rows, more = execution_pages.execution_page(tx, wanted, before=None, limit=10, budget=4)
        assert (rows, more is None) == ([], False), "nothing found among four, and it goes on"
        rows, more = execution_pages.execution_page(tx, wanted, before=more, limit=10, budget=4)
        assert (rows, more) == ([], None)


def test_readers_see_the_executions_of_their_projects_without_hidden_clusters(rig: Rig) -> None:
    bed = ExecutionBed(rig, cluster="")
    bed.agents["vault"] = rig.cluster("vault", is_private=True, graph=a_graph(count=4))
    bed.flow("chain", CHAIN)
    bed.create("chain", "e")
    bed.drive()
    rig.project("foreign")
    reader = rig.user("reader", (Role.VIEW, GrantTarget.PROJECT, PROJECT))
    assert names(rig, reader) == ["e"]
    assert names(rig, reader, cluster="vault") == [], "where it runs is not for them to know"
    assert names(rig, cluster="vault") == ["e"]
    with pytest.raises(Denied):
        names(rig, reader, project="foreign")
    for read in (execution_details, explain_execution):
        shown = str(msgspec.to_builtins(read(rig.context, reader, key())))
        assert "vault" not in shown
        assert "vault" in str(msgspec.to_builtins(read(rig.context, ADMIN, key())))
        with pytest.raises(Denied):
            read(rig.context, reader, ExecutionKey("foreign", DOMAIN, "e"))
        with pytest.raises(NotFound):
            read(rig.context, ADMIN, key("none"))
    page = node_page(rig.context, reader, key(), offset=0, limit=10)
    assert "vault" not in str(msgspec.to_builtins(page))


def test_details_have_bounds_inputs_outputs_and_counts(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    put_pool(rig, "lab", c1=1)
    created = launch(rig.context, ADMIN, a_launch(task="add", name="e", inputs={"a": 3, "b": "4"}, pool="lab"))
    assert created == CreatedExecution(PROJECT, DOMAIN, "e")
    bed.run_all()
    details = execution_details(rig.context, ADMIN, key())
    one = details.execution
    assert (one.phase, one.pool, one.clusters, one.kind, one.launched) == ("SUCCEEDED", "lab", ["c1"], "task", "add")
    assert (details.inputs, details.outputs) == ({"a": 3, "b": 4}, {"o0": 7})
    assert (details.nodes, details.namespace) == ({"SUCCEEDED": 1}, f"{PROJECT}-{DOMAIN}")
    assert details.asked_pool == "lab"


def test_nodes_say_what_they_wait_for(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    gate = workflow_pb2.GateNode()
    gate.approve.signal_id = "review"
    bed.flow("flow", [*CHAIN, gate_node("n2", gate), task_node("n3", upstream=("n2",), a=1, b=1)])
    bed.create("flow", "e")
    before = nodes(rig)
    assert (before["n0"].phase, before["n0"].waits) == ("", "begins with the next step of the execution")
    bed.drive()
    found = nodes(rig)
    assert (found["n0"].phase, found["n0"].waits) == ("RUNNING", "its job waits in line at its cluster")
    assert found["n0"].attempts[0].job
    assert (found["n1"].phase, found["n1"].waits, found["n1"].is_behind) == ("", "waits for n0", True)
    assert (found["n2"].kind, found["n2"].waits) == ("gate", "waits for the signal review")
    assert found["n3"].waits == "waits for n2"
    (lease,) = bed.lease()
    bed.crash(lease)
    bed.drive()
    tried = nodes(rig)["n0"]
    assert [one.number for one in tried.attempts] == [0, 1]
    assert tried.attempts[0].phase != tried.attempts[1].phase
    told = explain_execution(rig.context, ADMIN, key())
    assert {wait.node for wait in told.waits} == {"n0", "n2"}


def test_max_parallelism_is_a_reason_to_wait_and_pages_of_nodes_lead_on(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("wide", 5)
    bed.create("wide", "e", max_parallelism=2)
    bed.drive()
    waits = [node.waits for node in nodes(rig).values() if not node.phase]
    assert waits == ["2 nodes run, and no more may (max_parallelism)"] * 3
    first = node_page(rig.context, ADMIN, key(), offset=0, limit=3)
    second = node_page(rig.context, ADMIN, key(), offset=int(first.next or ""), limit=3)
    assert [node.id for node in (*first.items, *second.items)] == [f"n{number}" for number in range(5)]
    assert second.next is None


def test_an_explanation_repeats_the_draw_and_tells_each_misfit(rig: Rig) -> None:
    bed = ExecutionBed(rig, cluster="")
    bed.add_cluster("small", graph=a_graph(count=1, cores=2))
    for name in ("large1", "large2"):
        bed.add_cluster(name, graph=a_graph(count=1, cores=16))
    bed.task("large", CPU="8")
    bed.flow("mixed", [task_node("n0", a=1, b=1), task_node("n1", "large", a=1, b=1)])
    bed.create("mixed", "e")
    told = explain_execution(rig.context, ADMIN, key())
    assert [one.cluster for one in told.candidates] == ["large1", "large2"]
    assert told.drawn == bed.row("e").cluster
    assert "drawn on the name e among" in told.how
    by_task = {task.task: {one.cluster: one for one in task.verdicts} for task in told.tasks}
    assert by_task["add"]["small"].say == "yes"
    assert (by_task["large"]["small"].say, by_task["large"]["small"].step) == ("no", "match")
    assert told.policy is not None
    assert told.notes == []


def test_an_explanation_says_why_an_execution_waits_for_a_cluster(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.add_cluster("c2")
    bed.wide("wide", 1)
    for name in ("c1", "c2"):
        cordon(rig, name, True)
    bed.create("wide", "e")
    bed.drive()
    told = explain_execution(rig.context, ADMIN, key())
    assert told.how == "no cluster takes all of its tasks now; it waits for one"
    assert "waits for a cluster that takes all tasks: c1:" in told.waits[0].reason
    bed.create("wide", "s", annotations=SPREAD)
    assert "each node is routed by itself" in explain_execution(rig.context, ADMIN, key("s")).how


def test_a_rule_that_gives_the_pool_is_told_and_stored_with_the_execution(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    put_pool(rig, "lab", c1=1)
    layout.domain_pool_put(rig.context, ADMIN, DOMAIN, "lab", condition=UNCONDITIONAL)
    bed.wide("wide", 1)
    bed.create("wide", "e")
    details = execution_details(rig.context, ADMIN, key())
    assert (details.execution.pool, details.asked_pool) == ("lab", "")


def test_executions_are_counted_by_what_bounds_them_and_by_phase(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    put_pool(rig, "lab", c1=1)
    bed.wide("wide", 1)
    bed.create("wide", "e", cluster_assignment=pool("lab"))
    counts = rig.context.setting(ExecutionTally).phases
    assert counts.get("lab", "", "c1", "QUEUED") == 1
    bed.drive()
    (live,) = count_live(rig.context, sets_max=10)
    assert (live.pool, live.cluster, live.phase, live.count) == ("lab", "c1", "RUNNING", 1)
    bed.run_all()
    bed.create("wide", "f")
    changes.terminate(rig.context, ADMIN, key("f"), "")
    bed.run_all()
    assert counts.read() == {
        ("lab", "", "c1", "QUEUED"): 1,
        ("lab", "", "c1", "RUNNING"): 1,
        ("lab", "", "c1", "SUCCEEDED"): 1,
        ("", "", "c1", "QUEUED"): 1,
        ("", "", "c1", "ABORTED"): 1,
    }
    assert count_live(rig.context, sets_max=10) == []


def a_launch(**fields: Any) -> LaunchRequest:
    return msgspec.convert({"project": PROJECT, "domain": DOMAIN, **fields}, LaunchRequest)


def test_a_launch_takes_the_active_or_the_newest_version_and_is_idempotent(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("wide", 1)
    asked = a_launch(launch_plan="wide", name="e", label=None, envs={"A": "b"}, annotations={"note": "x"})
    assert launch(rig.context, ADMIN, asked) == launch(rig.context, ADMIN, asked)
    assert execution_details(rig.context, ADMIN, key()).annotations == {"note": "x"}
    with pytest.raises(Conflict):
        launch(rig.context, ADMIN, a_launch(launch_plan="wide", name="e"))


def test_an_execution_runs_again_in_another_pool(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    put_pool(rig, "lab", c1=1)
    bed.wide("wide", 1)
    bed.create("wide", "e")
    bed.run_all()
    for word in ("relaunch", "recover"):
        launch(rig.context, ADMIN, a_launch(**{word: "e"}, name=word, pool="lab"))
        details = execution_details(rig.context, ADMIN, key(word))
        assert (details.execution.pool, details.reference) == ("lab", "e")


BAD_LAUNCHES: list[tuple[dict[str, Any], type[YardError], str]] = [
    ({"launch_plan": "none"}, NotFound, "There is no launch plan none"),
    ({"task": "none", "version": "v9"}, NotFound, "missing entity"),
    ({"task": "add", "inputs": {"a": "x", "c": 1}}, BadValue, "a: 'x' is not a whole number; there is no input 'c'"),
    ({"task": "add", "inputs": {"a": 1}}, BadRequest, "expected_inputs b missing"),
    ({"task": "add", "inputs": {"a": 1, "b": 1}, "pool": "nowhere"}, YardError, "nowhere"),
    ({"task": "add", "inputs": {"a": 1, "b": 1}, "label": "nowhere"}, YardError, "nowhere"),
    ({"relaunch": "none"}, NotFound, "missing entity of type execution"),
    ({"task": "add", "project": "unknown"}, YardError, "unknown"),
    ({"task": "add", "domain": "unknown"}, BadRequest, "unknown"),
]


@pytest.mark.parametrize(("fields", "error", "words"), BAD_LAUNCHES)
def test_a_launch_that_cannot_be_is_refused_with_the_reason(
    lite: Rig, fields: dict[str, Any], error: type[YardError], words: str
) -> None:
    ExecutionBed(lite)
    with pytest.raises(error, match=words):
        launch(lite.context, ADMIN, a_launch(**{"name": "e", **fields}))
    assert names(lite) == []


def test_a_user_without_the_role_submit_or_without_the_pool_cannot_launch(rig: Rig) -> None:
    ExecutionBed(rig)
    rig.cluster("vault", is_private=True, graph=a_graph(count=4))
    put_pool(rig, "secret", vault=1)
    inputs = {"a": 1, "b": 1}
    rig.project("foreign")
    reader = rig.user("reader", (Role.VIEW, GrantTarget.PROJECT, "foreign"))
    with pytest.raises(Denied):
        launch(rig.context, reader, a_launch(task="add", inputs=inputs, project="foreign"))
    user = rig.user("user", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT))
    with pytest.raises(YardError, match="fits no cluster") as caught:
        launch(rig.context, user, a_launch(task="add", inputs=inputs, pool="secret"))
    assert "vault" not in caught.value.detail


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"task": "a", "launch_plan": "b"},
        {"relaunch": "a", "recover": "b"},
        {"relaunch": "a", "inputs": {"x": 1}},
        {"recover": "a", "version": "v1"},
        {"task": "a\u0000b"},
        {"task": "a", "name": "Has Spaces"},
        {"task": "a", "name": "x\u001b[31m"},
        {"task": "a", "max_parallelism": -1},
        {"task": "a", "unknown": 1},
    ],
)
def test_requests_that_contradict_themselves_are_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        a_launch(**fields)


def test_lists_read_no_values_and_end_at_a_number_of_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has up to 1,000 executions or nodes, and each may have megabytes of inputs and outputs."""
    bed = ExecutionBed(rig)
    bed.flow("chain", CHAIN)
    for name in ("a", "b", "c"):
        bed.create("chain", name)
    bed.run_all()
    query = reads.ExecutionQuery(PROJECT, DOMAIN)
    views, token = reads.list_executions(rig.context, ADMIN, query)
    assert ([view.row.name for view in views], token) == (["a", "b", "c"], "")
    assert {(view.row.inputs, view.row.outputs) for view in views} == {(b"", b"")}
    found: dict[str, Any] = {"parent_id": "", "is_descending": False, "offset": 0, "limit": 9}
    nodes, _ = reads.list_nodes(rig.context, ADMIN, key("a"), **found)
    assert [(node.row.node_id, node.row.inputs, node.row.outputs) for node in nodes] == [
        ("n0", b"", b""),
        ("n1", b"", b""),
    ]
    monkeypatch.setattr(reads, "PAGE_BYTES_MAX", 1)
    names, token = list[str](), "0"
    while token:
        views, token = reads.list_executions(rig.context, ADMIN, dataclasses.replace(query, offset=int(token)))
        names += [view.row.name for view in views]
        assert len(views) == 1
    assert names == ["a", "b", "c"]


def test_the_ends_of_children_are_read_within_a_bound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred of them may have ended since the last step, with megabytes of outputs each."""
    bed = ExecutionBed(rig)
    bed.wide("one", 1)
    bed.launches("parent", ["one"] * 3)
    bed.create("parent", "e")
    bed.drive()
    for lease in bed.lease():
        bed.succeed(lease)
    read, counts = loading.child_executions.children_ended, list[int]()

    def read_and_count(*args: Any, **more: Any) -> Any:
        rows = read(*args, **more)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(loading.child_executions, "children_ended", read_and_count)
    monkeypatch.setattr(loading, "READ_BYTES_MAX", 0)
    for _ in range(4):  # the ends of the other children are read in the next rounds
        bed.drive()
    assert bed.phase("e") == "SUCCEEDED"
    assert max(counts) == 1
