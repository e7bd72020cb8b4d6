"""Looking after a yard: pause and resume, new credentials, what is kept and for how long, the doctor."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_NOT_FOUND, EXIT_OK
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.acceptance.stage import SOON_S, Stage, staged, waiting_for
from tests.processes import PATIENCE_S, until
from tests.programs import call, isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.soak import SOAKED

NODES = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server with authentication, shared by the tests of this file."""
    with staged(tmp_path_factory.mktemp("stage"), auth=True) as made:
        yield made


# --- pause and resume


def test_a_paused_agent_takes_nothing_new_and_goes_on_with_what_it_has(stage: Stage) -> None:
    with stage.agent("calm") as agent:
        (listed,) = [row for row in stage.read("agent", "ls") if row["cluster"] == "calm"]
        gate = stage.folder / "calm-gate"
        running = stage.submit("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done", cluster="calm")
        stage.until_state(running, State.RUNNING)
        assert (
            "takes nothing new" in stage.yard("agent", "pause", listed["name"], "--reason", "disks", check=True).stdout
        )
        shown = stage.read("agent", "show", listed["id"])
        assert (shown["is_paused"], shown["is_live"], shown["reason"]) == (True, True, "disks")
        assert "paused" in stage.yard("agent", "ls", check=True).stdout
        cluster = stage.get("/v1/clusters/calm")
        assert (cluster["health"], cluster["reason"]) == ("paused", "disks")
        waiting = stage.submitted("true", cluster="calm")
        assert (waiting["state"], "paused: disks" in waiting["reason"]) == ("PENDING", True)
        said = stage.yard("explain", waiting["id"], check=True).stdout
        assert "yard agent resume" in said
        gate.touch()
        assert stage.ended(running)["state"] == "SUCCEEDED", "what it has goes on, and is reported"
        assert stage.job(waiting["id"])["state"] == "PENDING"
        assert agent.is_running
        stage.yard("agent", "resume", listed["name"], check=True)
        assert stage.ended(waiting["id"])["state"] == "SUCCEEDED"
        actions = [row["action"] for row in stage.read("audit") if row["object"] == f"calm/{listed['name']}"]
        assert actions[:2] == ["agent.resume", "agent.pause"]


def test_with_two_agents_the_other_one_takes_it(stage: Stage) -> None:
    with (
        stage.agent("pair", data=stage.folder / "pair-1", extra=["--name", "one"]),
        stage.agent("pair", data=stage.folder / "pair-2", extra=["--name", "two"]),
    ):
        stage.yard("agent", "pause", "one", check=True)
        until(lambda: stage.health("pair") == "up", SOON_S, "the other one is heard of")
        jobs = [stage.submit("true", cluster="pair") for _ in range(10)]
        assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
        log = (stage.folder / "agent-pair-1.log").read_text()
        assert "event=leased" not in log
        stage.yard("agent", "resume", "one", check=True)


@pytest.mark.parametrize("verb", ["pause", "resume", "rotate"])
def test_an_agent_that_is_not_there(stage: Stage, verb: str) -> None:
    assert stage.yard("agent", verb, "nobody").returncode == EXIT_NOT_FOUND


def test_pausing_needs_the_role_operate(stage: Stage) -> None:
    stage.post("/v1/users", {"name": "olga"})
    token = stage.post("/v1/tokens", {"user": "olga"})["token"]
    with stage.agent("guarded"):
        (listed,) = [row for row in stage.read("agent", "ls") if row["cluster"] == "guarded"]
        path = f"/v1/agents/{listed['id']}"
        assert stage.call("PATCH", path, {"is_paused": True}, token=token).status == 403
        stage.post(
            "/v1/grants",
            {"role": "operate", "to": "user", "subject": "olga", "on": "cluster", "object": "guarded"},
        )
        assert stage.call("PATCH", path, {"is_paused": False}, token=token).status == 200
        for bad in ({"is_paused": "yes"}, {"paused": True}, {"is_paused": True, "reason": "a\nb"}, [1]):
            assert stage.call("PATCH", path, bad, token=token).status == 400


# --- credentials


def credential(folder: Path) -> str:
    return str(json.loads((folder / "credential.json").read_text())["credential"])


def status_of(stage: Stage, bearer: str) -> int:
    return call("GET", f"{stage.url}/v1/agents/self", token=bearer).status


def test_a_credential_is_rotated_on_demand_without_a_break(stage: Stage) -> None:
    with stage.agent("keen") as agent:
        before = credential(agent.data)
        assert status_of(stage, before) == 200
        gate = stage.folder / "keen-gate"
        running = stage.submit("sh", "-c", waiting_for(gate), cluster="keen")
        stage.until_state(running, State.RUNNING)
        (listed,) = [row for row in stage.read("agent", "ls") if row["cluster"] == "keen"]
        stage.yard("agent", "rotate", listed["id"], check=True)
        until(lambda: credential(agent.data) != before, SOON_S, "the agent has another credential")
        until(lambda: status_of(stage, before) == 401, SOON_S, "the old one has ended")
        assert status_of(stage, credential(agent.data)) == 200
        assert stage.read("agent", "show", listed["id"])["is_rotation_asked"] is False
        gate.touch()
        assert stage.ended(running)["state"] == "SUCCEEDED"
        assert stage.ended(stage.submit("true", cluster="keen"))["state"] == "SUCCEEDED"
        assert "agent.rotate" in [row["action"] for row in stage.read("audit")][:5]
        assert agent.terminate() == EXIT_OK
    again = start_agent(stage.folder, stage.url, "keen", graph=NODES, reader=stage.token, data=agent.data)
    with again:
        assert stage.ended(stage.submit("true", cluster="keen"))["state"] == "SUCCEEDED"


def incarnation(stage: Stage, agent: str) -> str:
    """The process that has an agent's place; only the server knows it."""
    with closing(sqlite3.connect(stage.folder / "server-data/switchyard.db")) as db:
        return str(db.execute("SELECT incarnation FROM agents WHERE id = ?", (agent,)).fetchone()[0])


def test_a_new_credential_that_is_never_used_ends_nothing(stage: Stage) -> None:
    """The answer to a rotation got lost: the old one holds, and a second rotation makes the first's void."""
    with stage.agent("lost") as agent:
        old = credential(agent.data)
        [known] = stage.get("/v1/agents?cluster=lost")["items"]
        process = {"incarnation": incarnation(stage, known["id"])}
        first = stage.post("/v1/agents/rotate", process, token=old)["credential"]
        second = stage.post("/v1/agents/rotate", process, token=old)["credential"]
        assert [status_of(stage, each) for each in (old, first)] == [200, 401]
        assert stage.ended(stage.submit("true", cluster="lost"))["state"] == "SUCCEEDED"
        assert status_of(stage, second) == 200
        assert [status_of(stage, each) for each in (old, first)] == [401, 401]
        # The agent never saw the second one: it is refused when it next speaks, and says how to go on.
        stage.submit("true", cluster="lost")
        assert agent.wait(PATIENCE_S) == 4
        assert "Join again" in agent.log


@pytest.mark.parametrize("bearer", ["", "agent_nonsense", "yard_01ARZ3NDEKTSV4RRFFQ69G5FAV_x"])
def test_only_an_agent_rotates_its_credential(stage: Stage, bearer: str) -> None:
    assert call("POST", f"{stage.url}/v1/agents/rotate", {}, token=bearer or None).status == 401
    assert stage.call("POST", "/v1/agents/rotate", {}).status == 401, "nor does the administrator"


@pytest.mark.parametrize(("jobs", "kills"), [(20, 2), SOAKED(60, 6)])
def test_credentials_change_all_the_time_on_two_servers_and_the_agent_is_killed_in_between(
    tmp_path: Path, postgres: Postgres, jobs: int, kills: int
) -> None:
    url = postgres.create_database()
    ledger = Ledger(tmp_path)
    with (
        start_server(tmp_path, database=url, name="one") as one,
        start_server(tmp_path, database=url, name="two") as two,
        Client(one.url, retry_s=PATIENCE_S) as client,
    ):
        extra = ["--server", two.url, "--rotate-after", "1s"]
        agent = start_agent(tmp_path, one.url, "alpha", graph=NODES, extra=extra)
        with agent, ThreadPoolExecutor(1) as aside:
            first = credential(agent.data)
            ids = aside.submit(
                lambda: [client.submit(ledger.command("sleep 0.1"), env=ledger.env).id for _ in range(jobs)]
            )
            for _ in range(kills):
                time.sleep(0.7)  # between two kills: jobs are at every step
                agent.kill()
                agent.start()
            assert_each_ran_once(ledger, wait_all_final(client, ids.result(PATIENCE_S), PATIENCE_S))
            until(lambda: credential(agent.data) != first, SOON_S, "the credential has changed")
            assert agent.is_running, agent.tail()
            joins = [entry for entry in client.audit() if entry.action in ("agent.join", "agent.rejoin")]
            assert len(joins) == 1, "it never had to join again"


# --- what is kept, and for how long


def config(folder: Path, text: str) -> str:
    file = folder / "server.yaml"
    file.write_text(text)
    return str(file)


def test_what_is_old_goes_and_what_lives_stays(tmp_path: Path) -> None:
    file = config(tmp_path, "retention: {jobs: 3s, logs: 1s, events: 3s}\n")
    with staged(tmp_path, extra=["--config", file]) as stage, stage.agent("alpha"):
        long = stage.submit("sleep", "600")
        held = stage.submit("true", hold=True)
        short = [stage.submit("echo", "hello") for _ in range(5)]
        with ThreadPoolExecutor(len(short)) as aside:  # all at once: the first to end is soon gone
            waits = [f"/v1/jobs/{job}/wait?timeout_s=60" for job in short]
            assert {each["state"] for each in aside.map(stage.get, waits)} == {"SUCCEEDED"}
        until(
            lambda: [job["id"] for job in stage.walk("/v1/jobs", limit=50)] == [held, long],
            PATIENCE_S,
            "the old are gone",
        )
        assert stage.call("GET", f"/v1/jobs/{short[0]}").status == 404
        assert stage.call("GET", f"/v1/jobs/{short[0]}/output").status == 404
        assert stage.job(long)["state"] == "RUNNING"
        assert stage.job(held)["state"] == "PENDING"
        until(lambda: "event=removed" in stage.server.log, SOON_S, "it is in the log")
        assert stage.ended(stage.submit("true"))["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("retention: {jobs: soon}", "'soon' is not a duration"),
        ("retention: {jobs: -1}", "retention.jobs"),
        ("retention: {job: 3d}", "retention.job: unknown key; known here: jobs, logs, events, audit"),
        ("retention: {logs: [1]}", "retention.logs"),
        ("retention: {audit: 20000d}", "over ten years"),
        ("retention: never", "retention"),
    ],
)
def test_mistakes_in_the_terms_stop_the_start(tmp_path: Path, text: str, says: str) -> None:
    done = yard("server", "--data", str(tmp_path / "d"), "--config", config(tmp_path, text), env=isolated_env(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr


# --- the doctor


def test_the_doctor_finds_a_working_agent_well(stage: Stage) -> None:
    with stage.agent("hale") as agent:
        done = yard("agent", "doctor", "--data", str(agent.data), env=isolated_env(stage.folder))
        assert done.returncode == EXIT_OK, done.stdout
        assert "✘" not in done.stdout
        assert "of cluster hale, alive" in done.stdout
        env = isolated_env(stage.folder)
        found = json.loads(yard("agent", "doctor", "--data", str(agent.data), "-o", "json", env=env).stdout)
        checks = "dns tcp server clock proxy credential disk journal files cache backend accounts"
        assert [each["check"] for each in found] == checks.split()
        assert not [each for each in found if each["is_ok"] is False]
        (listed,) = [row for row in stage.read("agent", "ls") if row["cluster"] == "hale"]
        stage.yard("agent", "rm", listed["id"], "--force", check=True)
        done = yard("agent", "doctor", "--data", str(agent.data), env=isolated_env(stage.folder))
        assert done.returncode == 1
        assert "✘ credential" in done.stdout
        assert "Join again" in done.stdout
