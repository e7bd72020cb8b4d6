"""Executions and schedules on two servers with one database: whichever is killed, each node and each time runs once."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.flyte.flyte_site import NODES, PROJECT, RUNS_S, FlyteSite, host_rule
from tests.acceptance.flyte.shell_flows import (
    HERE,
    INT,
    INTS,
    an_id,
    constant,
    ended,
    good,
    jobs_of,
    map_node,
    outputs_of,
    start,
    task,
    task_node,
    workflow,
)
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import MovableClock, Server, start_agent, start_server
from tests.server.flyte_doors import Doors
from tests.services import Postgres, postgres_running

pytestmark = pytest.mark.timeout(RUNS_S)
JUMP_S = 65  # a schedule of each minute has a time within it
MINUTE = {"rate": {"value": 1, "unit": "MINUTE"}}


def a_server(folder: Path, database: str, name: str) -> tuple[Server, Doors]:
    port, config = free_port(), folder / "server.yaml"
    config.write_text(yaml.safe_dump({"storage": {"url": str(folder / "objects")}}))  # one store for both
    extra = ["--grpc", f"127.0.0.1:{port}", "--config", str(config)]
    server = start_server(folder, database=database, name=name, extra=extra)
    return server, Doors(server.url, f"127.0.0.1:{port}")


@contextmanager
def two_servers(folder: Path, database: str) -> Iterator[tuple[FlyteSite, Server]]:
    """A site whose doors are those of the first server, and the second server."""
    site_file = folder / "site.yaml"
    site_file.write_text(yaml.safe_dump({"images": [host_rule()]}))
    one, doors = a_server(folder, database, "one")
    with one:
        two, _ = a_server(folder, database, "two")
        extra = ["--server", two.url, "--config", str(site_file)]
        with two, start_agent(folder, one.url, "c1", graph=NODES, extra=extra) as agent:
            doors.v1("POST", "/v1/projects", {"name": PROJECT})
            yield FlyteSite(folder, one, agent, doors), two
            for server in (one, two):
                assert [line for line in server.log.splitlines() if "Traceback" in line] == []


def test_servers_killed_in_turn_lose_no_node_and_repeat_none(tmp_path: Path, postgres: Postgres) -> None:
    with two_servers(tmp_path, postgres.create_database()) as (site, two):
        notes = tmp_path / "notes"
        notes.touch()
        task(site, "note", f"echo $FLYTE_INTERNAL_EXECUTION_ID >> {notes}; give 1", inputs={"n": INT})
        task(site, "each", f"echo element >> {notes}; give 2", inputs={"n": INTS}, output=INTS)
        nodes = [task_node("n0", "note", [constant("n", 1)])]
        for number in range(1, 6):
            nodes.append(task_node(f"n{number}", "note", [constant("n", 1)], upstream_node_ids=[f"n{number - 1}"]))
        numbers = {"var": "n", "binding": {"collection": {"bindings": [constant("", 1)["binding"]] * 4}}}
        nodes.append({**map_node("n6", "each", [numbers]), "upstream_node_ids": ["n1"]})
        good(workflow(site, "chain", nodes, outputs={"o": (INTS, "n6", "o0")}))
        good(start(site, "turns", "chain"))
        victims = itertools.cycle((site.server, two))
        for count in (0, 2, 6, 9):
            until(lambda count=count: len(noted(notes)) >= count, RUNS_S, f"{count} tasks have run")
            victim = next(victims)
            victim.kill()
            victim.restart()
        assert ended(site, "turns", RUNS_S)["phase"] == "SUCCEEDED"
        assert outputs_of(site, "turns") == {"o": [2, 2, 2, 2]}
        assert Counter(noted(notes)) == {"turns": 6, "element": 4}
        assert len(jobs_of(site, "turns")) == 7, "six tasks and one array"


@pytest.fixture
def clock() -> Iterator[MovableClock]:
    with tempfile.TemporaryDirectory(prefix="switchyard-clock-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        yield MovableClock(Path(folder) / "clock")


def test_active_plans_run_by_their_schedules_and_no_time_twice(tmp_path: Path, clock: MovableClock) -> None:
    """The clock of the database is set forward by a minute, and the leader is killed at that moment."""
    with postgres_running(env=clock.env) as own, two_servers(tmp_path, own.create_database()) as (site, two):
        gate = {"id": "n0", "metadata": {}, "gate_node": {"sleep": {"duration": "1s"}}}
        good(workflow(site, "pause", [gate]))
        cron = {"cron_schedule": {"schedule": "* * * * *"}}
        for name, schedule in (("minutely", cron), ("often", MINUTE), ("idle", MINUTE), ("stopped", cron)):
            spec = {"workflow_id": an_id("WORKFLOW", "pause"), "entity_metadata": {"schedule": schedule}}
            good(site.doors.by_grpc("CreateLaunchPlan", {"id": an_id("LAUNCH_PLAN", name), "spec": spec}))
        for name, state in (
            *(("minutely", "ACTIVE"), ("often", "ACTIVE")),
            *(("stopped", "ACTIVE"), ("stopped", "INACTIVE")),
        ):
            good(site.doors.by_grpc("UpdateLaunchPlan", {"id": an_id("LAUNCH_PLAN", name), "state": state}))
        clock.move(f"+{JUMP_S}")
        site.server.kill()  # it was first, so it leads
        until(lambda: not missing(runs(two_doors(site, two))), 2 * PATIENCE_S, "both plans have run")
        site.server.restart()
        for jump in (2, 3):
            clock.move(f"+{jump * JUMP_S}")
            until(lambda jump=jump: not missing(runs(site), jump), PATIENCE_S, f"both plans have run {jump} times")
        found = runs(site)
        assert len(set(found)) == len(found), "each time of each plan has one execution"
        assert {name for name, _ in found} == {"minutely", "often"}
        until(lambda: set(phases(site)) == {"SUCCEEDED"}, PATIENCE_S, "all have ended")


def two_doors(site: FlyteSite, two: Server) -> FlyteSite:
    """The same site by the doors of the second server."""
    port = next(word for before, word in itertools.pairwise(two.argv) if before == "--grpc")
    return FlyteSite(site.folder, two, site.agent, Doors(two.url, port))


def scheduled(site: FlyteSite) -> list[dict[str, Any]]:
    asked = {"id": HERE, "limit": 100, "filters": "eq(mode,SCHEDULED)"}
    return list(good(site.doors.by_grpc("ListExecutions", asked)).answer.get("executions", []))


def runs(site: FlyteSite) -> list[tuple[str, str]]:
    """Plan and scheduled time of each execution that a schedule made."""
    specs = [execution["spec"] for execution in scheduled(site)]
    return [(spec["launch_plan"]["name"], spec["metadata"]["scheduled_at"]) for spec in specs]


def missing(found: list[tuple[str, str]], times: int = 1) -> bool:
    counts = Counter(name for name, _ in found)
    return any(counts[name] < times for name in ("minutely", "often"))


def phases(site: FlyteSite) -> list[str]:
    return [execution["closure"]["phase"] for execution in scheduled(site)]


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines()
