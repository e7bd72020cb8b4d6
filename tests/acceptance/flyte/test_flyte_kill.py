"""A server that is killed between the steps of a workflow: no node is lost, and none runs twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, RUNS_S, FlyteSite, flyte_site, sqlite_first
from tests.processes import until

FLOW = """
import os

from flytekit import task, workflow


def note(file: str, word: str) -> None:
    with open(file, "a") as out:
        out.write(word + "\\n")


@task
def begin(file: str) -> int:
    note(file, "begin")
    return 1


@task
def grow(file: str, n: int, word: str) -> int:
    note(file, word)
    return n * 2


@task
def join(file: str, a: int, b: int) -> int:
    note(file, "join")
    return a + b


@workflow
def inner(file: str, n: int) -> int:
    return grow(file=file, n=grow(file=file, n=n, word="inner-1"), word="inner-2")


@workflow
def wf(file: str) -> int:
    n = begin(file=file)
    return join(file=file, a=inner(file=file, n=n), b=grow(file=file, n=n, word="side"))
"""
DYNAMIC = """
from datetime import timedelta

from flytekit import approve, dynamic, task, workflow


def note(file: str, word: str) -> None:
    with open(file, "a") as out:
        out.write(word + "\\n")


@task
def grow(file: str, n: int) -> int:
    note(file, "grown")
    return n * 2


@task
def end(file: str, n: int) -> int:
    note(file, "end")
    return n


@dynamic
def made(file: str) -> int:
    note(file, "made")
    return grow(file=file, n=grow(file=file, n=1))


@workflow
def wf(file: str) -> int:
    return end(file=file, n=approve(made(file=file), "ok", timeout=timedelta(hours=2)))
"""
NOTES = ("begin", "inner-1", "inner-2", "side", "join")


@sqlite_first
def test_a_killed_server_loses_no_node_and_repeats_none(tmp_path: Path, database_url: str) -> None:
    with flyte_site(tmp_path, database=database_url) as site:
        (tmp_path / "flows.py").write_text(FLOW)
        notes = tmp_path / "notes"
        notes.touch()
        where = ["-p", PROJECT, "-d", DEV, "--image", "team/flows:1", "--name", "killed"]
        done = site.pyflyte("run", "--remote", *where, "flows.py", "wf", "--file", str(notes))
        assert done.returncode == 0, done.stdout + done.stderr
        kill(site)  # the execution is accepted, and perhaps nothing has begun
        for count in range(1, len(NOTES)):  # a task has run: its end, its outputs or the next step may be in between
            until(lambda count=count: len(noted(notes)) >= count, RUNS_S, f"{count} tasks have run")
            kill(site)
        until(lambda: phase(site) not in ("QUEUED", "RUNNING"), RUNS_S, "the execution has ended")
        assert phase(site) == "SUCCEEDED"
        assert Counter(noted(notes)) == Counter(NOTES)
        data = site.doors.by_grpc("GetExecutionData", {"id": identifier()}).answer
        assert data["full_outputs"]["literals"]["o0"]["scalar"]["primitive"]["integer"] == "6"
        assert len(site.doors.v1("GET", "/v1/jobs")["items"]) == len(NOTES)


@pytest.mark.timeout(RUNS_S)
def test_a_killed_server_repeats_nothing_of_a_dynamic_workflow_and_keeps_its_gate(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        (tmp_path / "flows.py").write_text(DYNAMIC)
        notes = tmp_path / "notes"
        notes.touch()
        where = ["-p", PROJECT, "-d", DEV, "--image", "team/flows:1", "--name", "killed"]
        done = site.pyflyte("run", "--remote", *where, "flows.py", "wf", "--file", str(notes))
        assert done.returncode == 0, done.stdout + done.stderr
        for count in (1, 2):  # the dynamic task has left its workflow; a task of that has run
            until(lambda count=count: len(noted(notes)) >= count, RUNS_S, f"{count} tasks have run")
            kill(site)
        until(lambda: signals(site) == ["ok"], RUNS_S, "the gate waits")
        kill(site)
        value = {"scalar": {"primitive": {"boolean": True}}}
        said = site.doors.by_grpc(
            "SetSignal", {"id": {"execution_id": identifier(), "signal_id": "ok"}, "value": value}
        )
        assert said.code == "OK", said
        kill(site)
        until(lambda: phase(site) not in ("QUEUED", "RUNNING"), RUNS_S, "the execution has ended")
        assert phase(site) == "SUCCEEDED"
        assert Counter(noted(notes)) == Counter(["made", "grown", "grown", "end"])
        assert len(site.doors.v1("GET", "/v1/jobs")["items"]) == 4
        node = {"id": {"execution_id": identifier(), "node_id": "n0"}}
        for call in ("GetNodeExecutionData", "GetDynamicNodeWorkflow"):
            answer = site.doors.by_grpc(call, node).answer
            compiled = answer.get("dynamic_workflow", answer)["compiled_workflow"]
            assert [one["id"] for one in compiled["primary"]["template"]["nodes"]][2:] == ["dn0", "dn1"]
        shown = site.doors.by_grpc("GetNodeExecution", node).answer
        assert (shown["metadata"]["is_dynamic"], shown["metadata"]["is_parent_node"]) == (True, True)


def signals(site: FlyteSite) -> list[str]:
    asked = {"workflow_execution_id": identifier(), "limit": 9}
    return [one["id"]["signal_id"] for one in site.doors.by_grpc("ListSignals", asked).answer.get("signals", [])]


def kill(site: FlyteSite) -> None:
    site.server.kill()
    site.server.restart()


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines()


def identifier() -> dict[str, str]:
    return {"project": PROJECT, "domain": DEV, "name": "killed"}


def phase(site: FlyteSite) -> str:
    return str(site.doors.by_grpc("GetExecution", {"id": identifier()}).answer["closure"]["phase"])
