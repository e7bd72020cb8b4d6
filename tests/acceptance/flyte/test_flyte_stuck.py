"""An execution that cannot go on, by a damaged row or a limit, stays where it is; the others go on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from tests.acceptance.flyte.flyte_site import PROJECT, FlyteSite
from tests.acceptance.flyte.shell_flows import HERE, INT, constant, good, jobs_of, start, task, task_node, workflow
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import Agent, start_server
from tests.server.flyte_doors import CONFIG, Doors


@contextmanager
def registered(folder: Path, **config: Any) -> Iterator[FlyteSite]:
    """A server with one workflow, and a cluster that no agent has joined."""
    port, file = free_port(), folder / "config.yaml"
    file.write_text(json.dumps(CONFIG | config), encoding="utf-8")
    with start_server(folder, auth=False, extra=["--grpc", f"127.0.0.1:{port}", "--config", str(file)]) as server:
        doors = Doors(server.url, f"127.0.0.1:{port}", None)
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        site = FlyteSite(folder, server, cast(Agent, None), doors)
        task(site, "one", "give 1", inputs={"n": INT})
        good(workflow(site, "flow", [task_node("n0", "one", [constant("n", 5)])]))
        yield site


def test_a_damaged_execution_holds_up_no_other(tmp_path: Path) -> None:
    with registered(tmp_path) as site:
        good(start(site, "damaged", "flow"))
        until(lambda: jobs_of(site, "damaged"), PATIENCE_S, "its job is there")
        with closing(sqlite3.connect(tmp_path / "server-data/switchyard.db", timeout=PATIENCE_S)) as db, db:
            db.execute("UPDATE executions SET inputs = x'ff', is_due = 1 WHERE name = 'damaged'")
        good(start(site, "sound", "flow"))
        until(lambda: jobs_of(site, "sound"), PATIENCE_S, "the other one goes on")
        until(lambda: "execution not driven" in site.server.log, PATIENCE_S, "the log says it")
        listed = site.doors.by_grpc("ListExecutions", {"id": HERE, "limit": 9}).answer["executions"]
        assert {execution["id"]["name"] for execution in listed} == {"damaged", "sound"}


def test_an_execution_without_room_for_its_files_waits_and_says_so(tmp_path: Path) -> None:
    with registered(tmp_path, files={"project_bytes": "1"}) as site:
        good(start(site, "full", "flow"))
        run = {**HERE, "name": "full"}
        nodes = {"workflow_execution_id": run, "limit": 9}
        until(
            lambda: site.doors.by_grpc("ListNodeExecutions", nodes).answer.get("node_executions"),
            PATIENCE_S,
            "it waits",
        )
        (node,) = site.doors.by_grpc("ListNodeExecutions", nodes).answer["node_executions"]
        asked = {"node_execution_id": node["id"], "limit": 9}
        (attempt,) = site.doors.by_grpc("ListTaskExecutions", asked).answer["task_executions"]
        assert (node["closure"]["phase"], attempt["closure"]["phase"]) == ("QUEUED", "WAITING_FOR_RESOURCES")
        assert "the files of project" in attempt["closure"]["reason"], "the limit, and no defect"
        assert "logs" not in attempt["closure"]
        assert "execution not driven" not in site.server.log
        assert jobs_of(site, "full") == []
