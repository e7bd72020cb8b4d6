"""An execution that cannot go on, by a damaged row or a limit, stays where it is; the others go on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
from flyteidl.service import admin_pb2_grpc

from tests.processes import PATIENCE_S, free_port, until
from tests.programs import Server, start_server
from tests.server.flyte_doors import CALL_S, CONFIG, Doors
from tests.workflow.corpus import DOMAIN, PROJECT, sent_by_flytekit

PLAN = "29_schedule.wf"
HERE = {"project": PROJECT, "domain": DOMAIN}


@contextmanager
def registered(folder: Path, **config: Any) -> Iterator[tuple[Server, Doors]]:
    """A server with one workflow, and a cluster that no agent has joined."""
    port, file = free_port(), folder / "config.yaml"
    file.write_text(json.dumps(CONFIG | config), encoding="utf-8")
    with start_server(folder, auth=False, extra=["--grpc", f"127.0.0.1:{port}", "--config", str(file)]) as server:
        doors = Doors(server.url, f"127.0.0.1:{port}", None)
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        with grpc.insecure_channel(doors.grpc) as line:
            stub = admin_pb2_grpc.AdminServiceStub(line)
            for sent in sent_by_flytekit():
                if sent.id.name.startswith("29_schedule"):
                    name, request = sent.request
                    getattr(stub, name)(request, timeout=CALL_S, wait_for_ready=True)
        yield server, doors


def test_a_damaged_execution_holds_up_no_other(tmp_path: Path) -> None:
    with registered(tmp_path) as (server, doors):
        create(doors, "damaged")
        until(lambda: jobs_of(doors, "damaged"), PATIENCE_S, "its job is there")
        with closing(sqlite3.connect(tmp_path / "server-data/switchyard.db", timeout=PATIENCE_S)) as db, db:
            db.execute("UPDATE executions SET inputs = x'ff', is_due = 1 WHERE name = 'damaged'")
        create(doors, "sound")
        until(lambda: jobs_of(doors, "sound"), PATIENCE_S, "the other one goes on")
        until(lambda: "execution not driven" in server.log, PATIENCE_S, "the log says it")
        listed = doors.by_grpc("ListExecutions", {"id": HERE, "limit": 9}).answer["executions"]
        assert {execution["id"]["name"] for execution in listed} == {"damaged", "sound"}


def test_an_execution_without_room_for_its_files_waits_and_says_so(tmp_path: Path) -> None:
    with registered(tmp_path, files={"project_bytes": "1"}) as (server, doors):
        create(doors, "full")
        run = {**HERE, "name": "full"}
        nodes = {"workflow_execution_id": run, "limit": 9}
        until(lambda: doors.by_grpc("ListNodeExecutions", nodes).answer.get("node_executions"), PATIENCE_S, "it waits")
        (node,) = doors.by_grpc("ListNodeExecutions", nodes).answer["node_executions"]
        asked = {"node_execution_id": node["id"], "limit": 9}
        (attempt,) = doors.by_grpc("ListTaskExecutions", asked).answer["task_executions"]
        assert (node["closure"]["phase"], attempt["closure"]["phase"]) == ("QUEUED", "WAITING_FOR_RESOURCES")
        assert "the files of project" in attempt["closure"]["reason"], "the limit, and no defect"
        assert "logs" not in attempt["closure"]
        assert "execution not driven" not in server.log
        assert jobs_of(doors, "full") == []


def create(doors: Doors, name: str) -> None:
    launched = {**HERE, "resource_type": "LAUNCH_PLAN", "name": PLAN, "version": "v1"}
    body = {**HERE, "name": name, "spec": {"launch_plan": launched}, "inputs": {}}
    made = doors.by_grpc("CreateExecution", body)
    assert made.message == "", made


def jobs_of(doors: Doors, name: str) -> list[Any]:
    return list(doors.v1("GET", f"/v1/jobs?label=flyte/execution%3D{name}")["items"])
