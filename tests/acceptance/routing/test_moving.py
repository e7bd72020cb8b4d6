"""Moving on, from outside: idle clusters take over, drained ones are left, spill rules open pools or end the wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_NOT_FOUND, EXIT_REJECTED, EXIT_TIMED_OUT
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.acceptance.rules.pools import FIRST, WORK, set_pool, write
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("moving")

CONFIG = """\
clusters:
  clusterConfigs: [{name: full}, {name: idle}, {name: dark, enabled: false}]
  poolNameClusterMap:
    both: [{id: full}, {id: idle}]
    stuck: [{id: full}, {id: idle}]
    main: [{id: full}]
    burst: [{id: idle}]
    dark: [{id: dark}]
  stickyPools: [stuck]
moving: {idle_takes_after: 2s}
spill: {pools: {dark: [after 1h try pool burst, reject after 2h]}}
"""
SPILL = "after 3s try pool burst"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("moving")
    with staged(folder, extra=["--config", write(folder, CONFIG)]) as made, made.agent("idle", cores=2):
        yield made


class Busy:
    """A cluster of one core, which is taken until its gate opens."""

    def __init__(self, stage: Stage, folder: Path, agent: Agent) -> None:
        self.stage, self.agent, self.gate = stage, agent, folder / "gate"
        self.job = stage.submit("sh", "-c", f"until [ -e {self.gate} ]; do sleep 0.05; done", cluster="full")
        stage.until_state(self.job, State.RUNNING)

    def end(self) -> None:
        self.gate.touch()
        assert self.stage.ended(self.job)["state"] == "SUCCEEDED"


@pytest.fixture
def busy(stage: Stage, tmp_path: Path) -> Iterator[Busy]:
    with stage.agent("full", cores=1) as agent:
        made = Busy(stage, tmp_path, agent)
        try:
            yield made
        finally:
            made.gate.touch()
            stage.call("PATCH", "/v1/clusters/full", {"is_cordoned": False})


def kinds(stage: Stage, job: str) -> list[str]:
    return [event["kind"] for event in stage.walk(f"/v1/jobs/{job}/events", limit=50)]


def until_reason(stage: Stage, job: str, reason: str) -> None:
    """It is PENDING, and says why."""
    until(lambda: stage.job(job).get("reason") == reason, SOON_S, f"{job}: {reason}")
    assert stage.job(job)["state"] == "PENDING"


@contextmanager
def not_idle(stage: Stage) -> Iterator[None]:
    """As long as this lasts, all jobs are drawn to `full`."""
    stage.yard("cluster", "cordon", "idle", check=True)
    yield
    stage.yard("cluster", "uncordon", "idle", check=True)


def in_line(stage: Stage, *command: str, **fields: Any) -> str:
    """A job that waits for its lease at `full`."""
    made = stage.submitted(*(command or ("true",)), **fields)
    assert (made["state"], made["cluster"]) == ("ASSIGNED", "full")
    return str(made["id"])


# --- idle clusters


def test_an_idle_cluster_takes_over_but_not_from_a_sticky_pool(stage: Stage, busy: Busy, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with not_idle(stage):
        moving = [in_line(stage, *ledger.command(), spec={"env": ledger.env}, pool="both") for _ in range(3)]
        array = in_line(stage, array="0-2", pool="both", together=True)
        sticky, pinned = in_line(stage, pool="stuck"), in_line(stage, cluster="full")
    with Client(stage.url) as client:
        ended = wait_all_final(client, moving, PATIENCE_S)
    assert_each_ran_once(ledger, ended)
    assert {job.cluster for job in ended.values()} == {"idle"}
    assert stage.ended(array)["cluster"] == "idle"
    assert kinds(stage, moving[0])[:3] == ["accepted", "moved", "leased"]
    explained = stage.yard("explain", moving[0], check=True).stdout
    assert "idle has room, and it waited" in " ".join(explained.split())
    assert {stage.job(job)["cluster"] for job in (sticky, pinned)} == {"full"}
    busy.end()
    for job in (sticky, pinned):
        assert stage.ended(job)["cluster"] == "full"
    assert "moved" not in kinds(stage, sticky)


def test_room_that_the_one_in_line_cannot_use_is_taken_over(stage: Stage, busy: Busy, tmp_path: Path) -> None:
    gate = tmp_path / "half"
    half = stage.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done", cluster="idle")
    stage.until_state(half, State.RUNNING)
    large = stage.submitted("true", cluster="idle", spec={"resources": {"cores": 2}})["id"]
    set_pool(stage, "mostly", full=1e9, idle=1)
    small = in_line(stage, pool="mostly")
    assert stage.ended(small)["cluster"] == "idle"
    assert [stage.job(job)["state"] for job in (large, half)] == ["ASSIGNED", "RUNNING"]
    gate.touch()
    assert stage.ended(large)["state"] == "SUCCEEDED"


def test_an_array_together_waits_for_its_drained_cluster_and_nothing_of_it_runs_elsewhere(tmp_path: Path) -> None:
    ledger, gate, cluster = Ledger(tmp_path), tmp_path / "gate", {"nodes": 1, "each": {"core": 2}}
    extra = ["--config", write(tmp_path, "moving: {idle_takes_after: 1s}")]
    with (
        start_server(tmp_path, extra=extra) as server,
        start_agent(tmp_path, server.url, "alpha", graph=cluster),
        start_agent(tmp_path, server.url, "beta", graph=cluster),
        Client(server.url) as client,
    ):
        env = isolated_env(tmp_path, url=server.url)
        line = f'until [ -e {gate} ]; do sleep 0.05; done; echo "$SWITCHYARD_ARRAY_INDEX" >> "$LEDGER"'
        job = client.submit(["sh", "-c", line], env=ledger.env, array="0-9", together=True)
        until(lambda: len(list(client.tasks(job.id, state=State.RUNNING))) == 2, PATIENCE_S, "two tasks run")
        home = job.refresh().cluster
        assert home is not None
        yard("cluster", "drain", home, env=env, check=True)
        gate.touch()
        waits = f"together: cluster {home} is drained; 2 tasks ran there"
        until(lambda: (job.refresh().state, job.refresh().reason) == (State.PENDING, waits), PATIENCE_S, waits)
        assert waits in " ".join(yard("show", job.id, env=env, check=True).stdout.split())
        explained = " ".join(yard("explain", job.id, env=env, check=True).stdout.split())
        assert "its tasks stay together, and another cluster has begun them" in explained
        yard("cluster", "uncordon", home, env=env, check=True)
        assert job.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
        assert client.job(job.id).tasks_by_cluster == {home: 10}
    assert sorted(map(int, ledger.runs().elements())) == list(range(10))


def test_a_pool_is_made_sticky_and_loose_again_at_run_time(stage: Stage) -> None:
    stage.yard("pool", "set", "glue", "full", "idle", "--sticky", check=True)
    assert stage.get("/v1/pools/glue")["sticky"] is True
    stage.yard("pool", "set", "glue", "full", check=True)
    assert stage.get("/v1/pools/glue")["sticky"] is True, "not said: as it was"
    stage.yard("pool", "set", "glue", "full", "--no-sticky", check=True)
    assert "sticky" not in stage.get("/v1/pools/glue")
    assert stage.get("/v1/pools/stuck")["sticky"] is True, "by the file"
    with Client(stage.url) as client:
        assert client.put_pool("glue", {"full": 1}, sticky=True, etag=client.pool("glue").etag).sticky
    stage.yard("pool", "rm", "glue", "--force", check=True)
    answer = stage.call("PUT", "/v1/cluster-labels/glue", {"members": [], "sticky": True}, headers=FIRST)
    assert (answer.status, "only a pool is sticky" in answer.json["detail"]) == (400, True)


def test_the_old_clusters_agent_is_told_to_stop_what_it_never_had(stage: Stage) -> None:
    old = ScriptedAgent(stage, "old")
    set_pool(stage, "pair", old=1)
    job = stage.submitted("true", pool="pair")
    stage.yard("cluster", "cordon", "old", check=True)
    until_reason(stage, job["id"], "waits for old: cordoned")
    seen = {"job": job["id"], "fence": 1}
    assert old.report(seen, "RUNNING") == ["stop"]
    stage.yard("cluster", "uncordon", "old", check=True)
    stage.until_state(job["id"], State.ASSIGNED)
    (lease,) = old.lease()
    assert lease["fence"] > 1
    assert old.report(seen, "SUCCEEDED") == ["stop"], "a late report under the old fence"
    assert old.report(lease, "RUNNING", "SUCCEEDED") == ["taken", "taken"]
    stage.yard("cluster", "rm", "old", "--force", check=True)


# --- cordon and drain


def test_a_drained_cluster_ends_what_it_has_and_the_others_go_elsewhere(stage: Stage, busy: Busy) -> None:
    with not_idle(stage):
        free, bound = in_line(stage, pool="both"), in_line(stage, pool="main")
    late = stage.yard("cluster", "drain", "full", "--reason", "new disks", "--deadline", "1s")
    assert late.returncode == EXIT_TIMED_OUT
    assert "still has 1 job" in late.stderr
    assert stage.ended(free)["cluster"] == "idle"
    until_reason(stage, bound, "waits for full: cordoned: new disks")
    assert stage.submitted("true", pool="main")["state"] == "PENDING"
    assert stage.job(busy.job)["state"] == "RUNNING"
    said = stage.yard("cluster", "drain", "full", check=True).stdout
    assert "1 job there goes on" in said
    assert stage.get("/v1/clusters/full")["reason"] == "new disks", "it still holds"
    with Client(stage.url) as client:
        left: list[int | None] = []

        def see(cluster: Any) -> None:
            left.append(cluster.held)
            busy.gate.touch()

        drained = client.drain_cluster("full", on_progress=see, timeout_s=PATIENCE_S)
    assert (left[0], left[-1], drained.held, drained.health.value) == (1, 0, 0, "cordoned")
    assert "is drained" in stage.yard("cluster", "drain", "full", "--wait", check=True).stdout
    assert stage.job(busy.job)["state"] == "SUCCEEDED"
    stage.yard("cluster", "uncordon", "full", check=True)
    assert stage.ended(bound)["cluster"] == "full"


def test_a_cluster_that_is_not_there_is_not_drained(stage: Stage) -> None:
    assert stage.yard("cluster", "drain", "mars", "--wait").returncode == EXIT_NOT_FOUND


# --- spill rules


def test_a_job_spills_into_the_next_pool_and_explain_says_so(stage: Stage, busy: Busy) -> None:
    patient = stage.submitted("true", pool="main", spill=["after 1h try pool burst"])["id"]
    explained = " ".join(stage.yard("explain", patient, check=True).stdout.split())
    assert "after 1h may also run in pool burst (rule at the request)" in explained
    stage.post(f"/v1/jobs/{patient}/cancel", {})
    done = stage.yard("submit", "-o", "name", "--pool", "main", "--spill", SPILL, "--", "true", check=True)
    job = done.stdout.strip()
    assert stage.job(job)["spill"] == [SPILL]
    ended = stage.ended(job)
    assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "idle")
    assert ended["ended_us"] - ended["created_us"] >= 3_000_000
    again = stage.post(f"/v1/jobs/{job}/retry", {})["id"]
    assert stage.job(again)["spill"] == [SPILL], "what its user asked for"
    stage.ended(again)


def test_a_rule_of_a_scope_rejects_what_waits_for_too_long_and_a_killed_server_forgets_no_rule(stage: Stage) -> None:
    stage.post("/v1/projects", {"name": "hasty"})
    value = {"cluster_pool_name": "dark", "spill": ["reject after 4s"]}
    at = "/v1/attributes/cluster-assignment?project=hasty"
    assert stage.call("PUT", at, value, headers=FIRST).status == 200
    job = stage.submitted("true", project="hasty")
    assert job["state"] == "PENDING"
    stage.server.kill()
    stage.server.start()
    stage.server.wait_ready()
    ended = stage.ended(job["id"])
    assert ended["state"] == "REJECTED"
    assert ended["reason"] == "it has not begun after 4s: rule `reject after 4s` (project level: project hasty)"
    done = stage.yard("submit", "--wait", "--pool", "dark", "--spill", "reject after 1s", "--", "true")
    assert done.returncode == EXIT_REJECTED
    configured = stage.submitted("true", pool="dark")
    assert stage.job(configured["id"])["spill"] == ["after 1h try pool burst", "reject after 2h"]
    note = " ".join(stage.yard("explain", configured["id"], check=True).stdout.split())
    assert "after 1h may also run in pool burst (rule at platform config, pool dark)" in note
    stage.post(f"/v1/jobs/{configured['id']}/cancel", {})


BAD_SPILL: list[tuple[str, dict[str, Any], str]] = [
    ("no rule", {"spill": ["soon"]}, "is not a spill rule"),
    ("no duration", {"spill": ["after a while try pool burst"]}, "is not a spill rule"),
    ("a zero", {"spill": ["reject after 0"]}, "is not a duration"),
    ("two ends", {"spill": ["reject after 1h", "reject after 2h"]}, "more than one rule rejects"),
    ("too late", {"spill": ["reject after 1h", "after 2h try pool burst"]}, "never comes about"),
    ("too many", {"spill": [f"after {n}m try pool p{n}" for n in range(1, 20)]}, "spill"),
    ("too long", {"spill": ["after 1m try pool " + "x" * 300]}, "spill"),
    ("not a list", {"spill": SPILL}, "spill"),
    ("an unknown pool", {"pool": "main", "spill": ["after 1m try pool mars"]}, "There is no pool 'mars'"),
    ("out of its scope", {"project": "bound", "spill": ["after 1m try pool both"]}, "its scope is bound to 'main'"),
]


@pytest.fixture(scope="module")
def bound(stage: Stage) -> None:
    stage.post("/v1/projects", {"name": "bound"})
    value = {"cluster_pool_name": "main", "spill": [SPILL]}
    at = "/v1/attributes/cluster-assignment?project=bound"
    assert stage.call("PUT", at, value, headers=FIRST).status == 200


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(("fields", "says"), [row[1:] for row in BAD_SPILL], ids=[row[0] for row in BAD_SPILL])
def test_a_bad_rule_is_refused_and_nothing_is_stored(stage: Stage, fields: dict[str, Any], says: str) -> None:
    before = stage.get("/v1/jobs?limit=1")["items"][:1]
    answer = stage.call("POST", "/v1/jobs", WORK | fields)
    assert answer.status in (400, 403, 422), answer.body
    assert says in answer.json["detail"], answer.json
    assert stage.get("/v1/jobs?limit=1")["items"][:1] == before


@pytest.mark.usefixtures("bound")
def test_a_pool_that_a_rule_opens_may_be_asked_for_and_is_not_removed(stage: Stage) -> None:
    assert stage.call("POST", "/v1/plan", WORK | {"project": "bound", "spill": [SPILL]}).status == 200
    refused = stage.call("DELETE", "/v1/pools/burst", headers={"If-Match": "*"})
    assert (refused.status, "attribute of kind cluster-assignment" in refused.json["detail"]) == (409, True)
    bad = {"cluster_pool_name": "main", "spill": ["after 1m try pool mars"]}
    answer = stage.call("PUT", "/v1/attributes/cluster-assignment?project=default", bad, headers=FIRST)
    assert (answer.status, "spill: there is no pool 'mars'" in answer.json["detail"]) == (400, True)


# --- pools that empty and clusters that go, while the server is killed


def test_nothing_is_lost_when_the_server_is_killed_while_clusters_go(stage: Stage) -> None:
    ScriptedAgent(stage, "brief")
    set_pool(stage, "safe", brief=1, idle=0)
    set_pool(stage, "alone", brief=1)
    set_pool(stage, "empties", dark=1)
    moving = [stage.submitted("true", pool="safe")["id"] for _ in range(20)]
    stuck = [stage.submitted("true", pool="alone")["id"] for _ in range(20)]
    waiting = [stage.submitted("true", pool="empties")["id"] for _ in range(20)]
    set_pool(stage, "empties")
    stage.yard("cluster", "rm", "brief", "--force", check=True)
    stage.server.kill()
    stage.server.start()
    stage.server.wait_ready()
    for job in moving:
        ended = stage.ended(job)
        assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "idle")
    for job in stuck:
        ended = stage.ended(job)
        assert (ended["state"], ended["reason"].split(":")[0]) == ("REJECTED", "no cluster of pool alone is there")
    for job in waiting:
        ended = stage.ended(job)
        assert (ended["state"], ended["reason"].split(":")[0]) == ("REJECTED", "the pool empties has no cluster")


# --- two servers


def test_whichever_server_leads_moves_what_waits_and_each_runs_once(tmp_path: Path, postgres: Postgres) -> None:
    url, ledger, gate = migrated(postgres), Ledger(tmp_path), tmp_path / "gate"
    extra = ["--config", write(tmp_path, "moving: {idle_takes_after: 1s}")]
    with (
        start_server(tmp_path, database=url, name="one", extra=extra) as one,
        start_server(tmp_path, database=url, name="two", extra=extra) as two,
        start_agent(tmp_path, two.url, "full", graph={"nodes": 1, "each": {"core": 1}}),
        Client(two.url, retry_s=PATIENCE_S) as client,
    ):
        blocker = client.submit(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done"])
        until(lambda: blocker.refresh().state is State.RUNNING, SOON_S, "the cluster is full")
        ids = [client.submit(ledger.command(), env=ledger.env).id for _ in range(12)]
        with start_agent(tmp_path, two.url, "idle", graph={"nodes": 1, "each": {"core": 2}}):
            one.kill()  # it has led so far, or the other one does: either way somebody goes on
            ended = wait_all_final(client, ids, PATIENCE_S)
            assert_each_ran_once(ledger, ended)
            assert {job.cluster for job in ended.values()} == {"idle"}
        gate.touch()
        assert blocker.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
