"""Signals over both doors: what gates wait for, who may set it, and each way to set it wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, until
from tests.server.flyte_doors import Doors, opened

pytestmark = pytest.mark.xdist_group("flyte-signals")
PROJECT = "gates"
HERE = {"project": PROJECT, "domain": "development"}
GATES: dict[str, dict[str, Any]] = {
    "title": {"signal": {"signal_id": "title", "type": {"simple": "STRING"}, "output_variable_name": "o0"}},
    "ok": {"approve": {"signal_id": "ok"}},
    "pause": {"sleep": {"duration": "1s"}},
}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A server without a cluster: gates need none."""
    with opened(tmp_path_factory.mktemp("gates"), auth=True) as made:
        made.v1("POST", "/v1/projects", {"name": PROJECT})
        for name in GATES:
            register(made, name, name)
        register(made, "both", "title", "ok")
        yield made


def an_id(name: str, kind: str) -> dict[str, str]:
    return {**HERE, "resource_type": kind, "name": name, "version": "v1"}


def register(doors: Doors, name: str, *gates: str, node_id: str = "n{}", **change: Any) -> None:
    """A workflow of these gates, and its launch plan."""
    nodes = [
        {"id": node_id.format(number), "metadata": {}, "gate_node": {**GATES[gate], **change}}
        for number, gate in enumerate(gates)
    ]
    template = {"id": an_id(name, "WORKFLOW"), "interface": {}, "nodes": nodes}
    made = doors.by_grpc("CreateWorkflow", {"id": an_id(name, "WORKFLOW"), "spec": {"template": template}})
    assert made.code == "OK", made
    plan = {"workflow_id": an_id(name, "WORKFLOW"), "default_inputs": {}, "fixed_inputs": {}}
    planned = doors.by_grpc("CreateLaunchPlan", {"id": an_id(name, "LAUNCH_PLAN"), "spec": plan})
    assert planned.code == "OK", planned


def launched(doors: Doors, plan: str, name: str) -> dict[str, str]:
    request = {**HERE, "name": name, "spec": {"launch_plan": an_id(plan, "LAUNCH_PLAN")}, "inputs": {}}
    made = doors.by_grpc("CreateExecution", request)
    assert made.code == "OK", made
    return {**HERE, "name": name}


def listed(doors: Doors, execution: dict[str, str], door: str = "grpc", **more: Any) -> dict[str, Any]:
    said = doors.ways()[door]("ListSignals", {"workflow_execution_id": execution, "limit": 10, **more})
    assert said.code == "OK", said
    return said.answer


def waits(doors: Doors, execution: dict[str, str], count: int = 1) -> list[str]:
    until(lambda: len(listed(doors, execution).get("signals", [])) == count, PATIENCE_S, "the gates wait")
    return [one["id"]["signal_id"] for one in listed(doors, execution)["signals"]]


def a_signal(execution: dict[str, str], signal_id: str, value: Any = None) -> dict[str, Any]:
    request: dict[str, Any] = {"id": {"execution_id": execution, "signal_id": signal_id}}
    return {**request, "value": {"scalar": {"primitive": value}}} if value is not None else request


def phase(doors: Doors, execution: dict[str, str]) -> str:
    return str(doors.by_grpc("GetExecution", {"id": execution}).answer["closure"]["phase"])


def ends(doors: Doors, execution: dict[str, str], word: str) -> dict[str, Any]:
    until(lambda: phase(doors, execution) == word, PATIENCE_S, word)
    closure: dict[str, Any] = doors.by_grpc("GetExecution", {"id": execution}).answer["closure"]
    return closure


@pytest.mark.parametrize("door", ["rest", "grpc"])
def test_a_gate_waits_until_its_signal_is_set(doors: Doors, door: str) -> None:
    execution = launched(doors, "both", f"both-{door}")
    assert waits(doors, execution, 2) == ["ok", "title"]
    (node, _) = doors.by_grpc("ListNodeExecutions", {"workflow_execution_id": execution, "limit": 9}).answer[
        "node_executions"
    ]
    assert (node["closure"]["phase"], node["metadata"]["spec_node_id"]) == ("RUNNING", "n0")
    ask = doors.ways()[door]
    first = ask("SetSignal", a_signal(execution, "title", {"string_value": "News"}))
    assert first.code == "OK", first
    (approval, title) = listed(doors, execution, door)["signals"]
    assert (title["type"], title["value"]["scalar"]["primitive"]) == ({"simple": "STRING"}, {"string_value": "News"})
    assert (approval["type"], "value" in approval) == ({"simple": "BOOLEAN"}, False)
    assert ask("SetSignal", a_signal(execution, "ok", {"boolean": True})).code == "OK"
    ends(doors, execution, "SUCCEEDED")


def test_a_rejected_approval_fails_and_a_sleep_ends_by_itself(doors: Doors) -> None:
    asleep = launched(doors, "pause", "asleep")
    execution = launched(doors, "ok", "rejected")
    waits(doors, execution)
    doors.by_grpc("SetSignal", a_signal(execution, "ok", {"boolean": False}))
    assert ends(doors, execution, "FAILED")["error"]["code"] == "ReceivedRejectSignal"
    ends(doors, asleep, "SUCCEEDED")


def test_each_wrong_way_to_set_a_signal_is_told(doors: Doors) -> None:
    execution = launched(doors, "title", "wrong")
    waits(doors, execution)
    text = {"string_value": "x"}
    cases = [
        (a_signal(execution, "title", {"integer": "3"}), "INVALID_ARGUMENT", "wrong type"),
        (a_signal(execution, "title"), "INVALID_ARGUMENT", "has no value"),
        (a_signal(execution, "later", text), "NOT_FOUND", "missing entity of type signal"),
        (a_signal(execution, "", text), "INVALID_ARGUMENT", "missing signal_id"),
        (a_signal(execution, "a\u0000b", text), "INVALID_ARGUMENT", "none that cannot be printed"),
        (a_signal(execution, "x" * 201, text), "INVALID_ARGUMENT", "at most 200 characters"),
        (a_signal({**HERE, "name": "nobody"}, "title", text), "NOT_FOUND", "missing entity of type execution"),
    ]
    large = doors.by_grpc("SetSignal", a_signal(execution, "title", {"string_value": "x" * 2**20}))
    assert (large.code, "the most is" in large.message) == ("RESOURCE_EXHAUSTED", True), large
    for ask in doors.ways().values():
        for request, code, words in cases:
            said = ask("SetSignal", request)
            assert (said.code, words in said.message) == (code, True), (said, code)
        nothing = ask("ListSignals", {"workflow_execution_id": execution})
        assert nothing.code == "INVALID_ARGUMENT", "a list without a limit has no bound"
        filtered = ask("ListSignals", {"workflow_execution_id": execution, "limit": 1, "filters": "eq(id,1)"})
        assert filtered.code == "INVALID_ARGUMENT"
    doors.by_grpc("TerminateExecution", {"id": execution})
    ends(doors, execution, "ABORTED")
    late = doors.by_grpc("SetSignal", a_signal(execution, "title", text))
    assert (late.code, "is over or stops" in late.message) == ("FAILED_PRECONDITION", True), late


def test_a_signal_that_a_client_makes_can_be_set_before_its_gate_and_again(doors: Doors) -> None:
    execution = launched(doors, "ok", "early")
    made = doors.by_grpc("GetOrCreateSignal", {**a_signal(execution, "mine"), "type": {"simple": "INTEGER"}})
    assert made.answer["type"] == {"simple": "INTEGER"}
    again = doors.by_grpc("GetOrCreateSignal", {**a_signal(execution, "mine"), "type": {"simple": "STRING"}})
    assert again.answer == made.answer, "one that is there stays as it is"
    for value in ("1", "2"):
        assert doors.by_grpc("SetSignal", a_signal(execution, "mine", {"integer": value})).code == "OK"
    waits(doors, execution, 2)
    first = listed(doors, execution, limit=1)
    second = listed(doors, execution, limit=1, token=first["token"])
    found = {one["id"]["signal_id"]: one for one in (*first["signals"], *second["signals"])}
    assert found["mine"]["value"]["scalar"]["primitive"] == {"integer": "2"}
    assert set(found) == {"mine", "ok"}
    untyped = doors.by_grpc("GetOrCreateSignal", a_signal(execution, "other"))
    assert untyped.code == "INVALID_ARGUMENT"


def test_who_may_set_a_signal(doors: Doors) -> None:
    execution = launched(doors, "ok", "rights")
    waits(doors, execution)
    for name, role, code in (
        ("viewer", "view", "PERMISSION_DENIED"),
        ("mate", "submit", "PERMISSION_DENIED"),
        ("chief", "operate", "OK"),
    ):
        doors.v1("POST", "/v1/users", {"name": name})
        grant = {"role": role, "to": "user", "subject": name, "on": "project", "object": PROJECT}
        doors.v1("POST", "/v1/grants", grant)
        token = doors.v1("POST", "/v1/tokens", {"user": name})["token"]
        other = Doors(doors.url, doors.grpc, token)
        said = other.by_grpc("SetSignal", a_signal(execution, "ok", {"boolean": True}))
        assert said.code == code, (name, said)
    ends(doors, execution, "SUCCEEDED")


@pytest.mark.parametrize("bad", ["a\u0000b", "a\nb", "x" * 201, ""], ids=["NUL", "line", "long", "none"])
def test_ids_that_cannot_be_stored_are_refused_before_anything_runs(doors: Doors, bad: str) -> None:
    name = f"bad{len(bad)}-{bad.encode().hex()[:8]}"
    register(doors, name, "ok", approve={"signal_id": bad})
    request = {**HERE, "name": "", "spec": {"launch_plan": an_id(name, "LAUNCH_PLAN")}, "inputs": {}}
    said = doors.by_grpc("CreateExecution", request)
    assert (said.code, "signal" in said.message) == ("INVALID_ARGUMENT", True), said
    if bad:
        register(doors, f"{name}-node", "pause", node_id=bad.replace("{", ""))
        request["spec"] = {"launch_plan": an_id(f"{name}-node", "LAUNCH_PLAN")}
        said = doors.by_grpc("CreateExecution", request)
        assert (said.code, "node id" in said.message) == ("INVALID_ARGUMENT", True), said


def test_a_server_without_a_cluster_keeps_its_gates_over_a_restart(tmp_path: Path, database_url: str) -> None:
    with opened(tmp_path, database=database_url) as first:
        first.v1("POST", "/v1/projects", {"name": PROJECT})
        register(first, "both", "title", "ok")
        execution = launched(first, "both", "kept")
        waits(first, execution, 2)
        first.by_grpc("SetSignal", a_signal(execution, "title", {"string_value": "News"}))
    with opened(tmp_path, database=database_url) as second:
        assert {one["id"]["signal_id"]: "value" in one for one in listed(second, execution)["signals"]} == {
            "title": True,
            "ok": False,
        }
        second.by_grpc("SetSignal", a_signal(execution, "ok", {"boolean": True}))
        ends(second, execution, "SUCCEEDED")
