"""The bound on a workflow while a server and an agent are killed: never over it, and never stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.acceptance.faults.crowd import CROWD, begun, most_at_once, open_gate_at
from tests.acceptance.stage import END_S
from tests.processes import until
from tests.programs import call, start_agent, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

CONFIG = "workflow-execution-config"
SCOPE = "project=default&domain=development&workflow=flow"
NODES = {"nodes": 1, "each": {"core": 16, "memory": "8GiB"}}
BOUND, TASKS, JOBS = 3, 4, 8


def test_the_bound_holds_while_a_server_and_an_agent_are_killed(tmp_path: Path, postgres: Postgres) -> None:
    database, file = migrated(postgres), tmp_path / "crowd"
    file.touch()
    with (
        start_server(tmp_path, database=database, name="one") as one,
        start_server(tmp_path, database=database, name="two") as two,
        start_agent(tmp_path, one.url, "alpha", graph=NODES, extra=("--server", two.url)) as alpha,
        start_agent(tmp_path, two.url, "beta", graph=NODES),
    ):
        path = f"{two.url}/v1/attributes/{CONFIG}?{SCOPE}"
        assert call("PUT", path, {"max_parallelism": BOUND}, headers={"If-None-Match": "*"}).status == 200
        job: dict[str, Any] = {"spec": {"command": ["sh", "-c", CROWD], "env": {"CROWD": str(file)}}}
        jobs = [{**job, "workflow": "flow"}] * JOBS + [{**job, "workflow": "flow", "array": f"0-{TASKS - 1}"}]
        assert call("POST", f"{two.url}/v1/jobs/bulk", {"jobs": jobs}).status == 201
        open_gate_at(file, BOUND)
        until(lambda: begun(file) >= 4, END_S, "some have begun")
        one.kill()
        until(lambda: begun(file) >= 8, END_S, "others begin without that server")
        alpha.kill()
        alpha.start()  # what it had runs on without it, and counts: silence is no proof that a job is gone

        def are_over() -> bool:
            found = call("GET", f"{two.url}/v1/jobs?limit=50").json["items"]
            return {each["state"] for each in found} == {"SUCCEEDED"}

        until(are_over, 3 * END_S, "all jobs have succeeded")
    assert begun(file) == JOBS + TASKS
    assert most_at_once(file) == BOUND
