"""Queues from outside: tags, limits, fair share and ageing, by the file and at run time, at one server and at two."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_USAGE
from switchyard.model.rules.queue import Queue, QueueLimits
from tests.acceptance.bed import wait_all_final
from tests.acceptance.faults.crowd import CROWD, most_at_once, open_gate_at
from tests.acceptance.rules.pools import ANY, FIRST, write
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import YARD, Program, isolated_env, start_agent, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("queues")

CONFIG = """\
clusters:
  labelClusterMap: {tried: [{id: scripted}], plain: [{id: a}]}
queues:
  - {name: one, attributes: [single, slow], limits: {running: 1}, native: {scripted: long, a: none-such}}
  - {name: fast, attributes: [quick], priority: 100}
  - {name: shared, attributes: [both], weights: {vision: 3}, ageing: 5s}
domains: [development, {id: staging, tags: [single]}, {id: production, tags: [single, quick]}]
"""
HERE: Fields = {"cluster_label": "plain"}
THERE: Fields = {"cluster_label": "tried"}
WIDE = {"nodes": 1, "each": {"core": 16, "memory": "8GiB"}}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("queues")
    with staged(folder, extra=["--config", write(folder, CONFIG)]) as made, made.agent("a"):
        for project in ("vision", "speech"):
            made.yard("project", "create", project, check=True)
        yield made


@pytest.fixture(scope="module")
def agent(stage: Stage) -> ScriptedAgent:
    return ScriptedAgent(stage, "scripted")


def test_a_limited_queue_holds_jobs_back_until_one_ends(stage: Stage, agent: ScriptedAgent) -> None:
    first, *others = [stage.submitted("true", tags=["slow"], **THERE) for _ in range(3)]
    assert {job["state"] for job in (first, *others)} == {"PENDING"}
    assert first["reason"] == "queue one: waits for a place"
    (lease,) = agent.lease(9)
    assert (lease["job"], lease["native_queue"]) == (first["id"], "long")
    assert [stage.job(job["id"])["state"] for job in others] == ["PENDING", "PENDING"]
    assert stage.job(others[0]["id"])["queue"] == "one"
    stage.post(f"/v1/jobs/{others[0]['id']}/cancel", {})
    agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)
    (lease,) = agent.lease(9)
    assert lease["job"] == others[1]["id"]
    agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)


def test_a_plan_says_that_its_queue_is_full(stage: Stage, agent: ScriptedAgent) -> None:
    words = ("submit", "--plan", "--queue-tag", "slow", "--cluster-label", "tried", "--", "true")
    assert stage.read(*words)["chosen"] == "scripted", "there is a place"
    stage.submit("true", tags=["slow"], **THERE)
    (lease,) = agent.lease(9)
    full = stage.read(*words)
    assert (full["outcome"], full["reason"]) == ("hold", "queue one: 1 of its 1 places are taken")
    assert "queue one: 1 of its 1 places are taken" in stage.yard(*words, check=True).stdout
    agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)
    until(lambda: stage.read(*words)["outcome"] == "assign", SOON_S, "the place is free again")


def test_a_limit_set_at_run_time_holds_for_what_is_in_line(stage: Stage, agent: ScriptedAgent) -> None:
    stage.yard("queue", "set", "late", "--attribute", "later", check=True)
    agent.heard()  # a command may take so long that an agent which says nothing counts as down
    jobs = [stage.submit("true", tags=["later"], **THERE) for _ in range(3)]
    array = stage.submit("true", tags=["later"], array="0-99", **THERE)
    assert {stage.job(job)["state"] for job in (*jobs, array)} == {"ASSIGNED"}
    agent.heard()
    stage.yard("queue", "set", "late", "--attribute", "later", "--limit", "2", check=True)

    def is_taken_back() -> bool:
        agent.heard()
        return bool(stage.job(jobs[2]).get("reason") == "queue late: waits for a place")

    until(is_taken_back, SOON_S, "what nobody has is taken back")
    assert stage.job(jobs[2])["state"] == "PENDING"
    leases = agent.lease(50)
    assert [lease["job"] for lease in leases] == jobs[:2]
    for lease in leases:
        agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)
    (third, *_) = agent.lease(50)
    assert third["job"] == jobs[2]
    agent.report(third, "RUNNING", "SUCCEEDED", exit_code=0)
    stage.post(f"/v1/jobs/{array}/cancel", {})
    stage.yard("queue", "rm", "late", "--force", check=True)


def test_the_command_line_takes_tags_and_refuses_those_nobody_has(stage: Stage) -> None:
    shown = stage.read("submit", "--queue-tag", "quick", "--cluster", "a", "--", "true")
    assert stage.job(shown["id"])["queue"] == "fast"
    assert "fast" in stage.yard("show", shown["id"], check=True).stdout
    for tags, says in ((["nowhere"], "no queue tag 'nowhere'"), (["quick", "slow"], "No queue has all of the tags")):
        done = stage.yard("submit", *(word for tag in tags for word in ("--queue-tag", tag)), "--", "true")
        assert done.returncode == EXIT_USAGE
        assert says in done.stderr
        assert "Known queue tags: both, default, fast, one, quick, shared, single, slow" in done.stderr


def test_the_sdk_the_domain_and_an_attribute_give_tags(stage: Stage) -> None:
    with Client(stage.url) as client:
        assert client.submit(["true"], tags=["quick"], cluster="a").wait(timeout_s=PATIENCE_S).queue == "fast"
        assert client.submit(["true"], domain="staging", cluster="a").wait(timeout_s=PATIENCE_S).queue == "one"
        assert client.submit(["true"], domain="production", cluster="a").wait(timeout_s=PATIENCE_S).queue == "default"
    path = "/v1/attributes/execution-queue-attribute?project=vision&domain=staging"
    assert stage.call("PUT", path, {"tags": ["nowhere"]}, headers=FIRST).status == 400
    assert stage.call("PUT", path, {"tags": ["both"]}, headers=FIRST).status == 200
    made = stage.submitted("true", project="vision", domain="staging", **HERE)
    job = stage.ended(made["id"])
    (used,) = [each for each in job["policy"]["values"] if each["kind"] == "execution-queue-attribute"]
    assert (job["queue"], used["value"], used["level"]) == ("shared", ["both"], "project+domain")
    refused = stage.call("DELETE", "/v1/queues/shared", headers=ANY)
    assert refused.status == 409
    assert "1 attribute of kind execution-queue-attribute" in refused.json["detail"]
    assert stage.call("DELETE", path, headers=ANY).status == 200


def test_projects_share_a_cluster_by_their_weights(stage: Stage, agent: ScriptedAgent) -> None:
    one = {"spec": {"command": ["true"], "resources": {"cores": 1}}, "tags": ["both"], **THERE}
    # In one request: on a busy machine the cluster would be down before the last of many.
    stage.post("/v1/jobs/bulk", {"jobs": [{**one, "project": name} for name in ("speech", "vision") for _ in range(8)]})
    leases = [lease for _ in range(8) for lease in agent.lease(1)]
    found = [lease["project"] for lease in leases]
    assert (found.count("vision"), found.count("speech")) == (6, 2)
    for lease in leases + agent.lease(50):
        agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)


def test_priority_of_the_job_and_of_its_queue_comes_before_all(stage: Stage, agent: ScriptedAgent) -> None:
    low, high, above = (
        stage.submit("true", tags=tags, priority=priority, **THERE)
        for tags, priority in ((["both"], 0), (["quick"], 0), (["both"], 101))
    )
    leases = agent.lease(9)
    assert [lease["job"] for lease in leases] == [above, high, low]
    for lease in leases:
        agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)


def test_small_jobs_pass_a_big_one_only_for_a_while(stage: Stage, agent: ScriptedAgent) -> None:
    big = stage.submit("true", tags=["both"], spec={"resources": {"cores": 8}}, **THERE)
    small = [{"spec": {"command": ["true"], "resources": {"cores": 1}}, "labels": {"small": "yes"}, **THERE}] * 2000
    stage.post("/v1/jobs/bulk", {"jobs": small})
    passed: list[dict[str, Any]] = []
    until(lambda: _stops(agent, passed), SOON_S, "the big one holds the others back")
    assert passed, "at first they pass"
    assert big not in {lease["job"] for lease in passed}
    found = agent.lease(9)
    assert [lease["job"] for lease in found] == [big], "it has all the room there is"
    for lease in [*passed, *found]:
        agent.report(lease, "RUNNING", "SUCCEEDED", exit_code=0)
    stage.yard("cancel", "--all", "-l", "small=yes", "--state", "ASSIGNED", "--force", check=True)


def _stops(agent: ScriptedAgent, leases: list[dict[str, Any]]) -> bool:
    """Whether an agent with room for small jobs alone gets none any more."""
    given = agent.heard(want=1, room={"cores": 4, "memory_bytes": 2**33}).get("leases", [])
    leases.extend(given)
    return not given


# --- at run time


def test_a_queue_is_set_shown_and_removed_without_a_restart(stage: Stage) -> None:
    stage.yard("queue", "set", "new", "--attribute", "fresh", "--limit", "0", "--weight", "vision=2", check=True)
    made = stage.submitted("true", tags=["fresh"], **HERE)
    assert made["state"] == "PENDING"
    shown = stage.yard("queue", "show", "new", check=True).stdout
    assert "fresh" in shown
    assert "vision=2" in shown
    stage.yard("queue", "set", "new", "--limit", "3", "--native", "a=part", "--ageing", "2m", check=True)
    assert stage.ended(made["id"])["state"] == "SUCCEEDED"
    queue = stage.read("queue", "show", "new")["queue"]
    assert queue == {
        "attributes": ["fresh"],
        "limits": {"running": 3, "projects": {}},
        "priority": 0,
        "interruptible": False,
        "native": {"a": "part"},
        "weights": {"vision": 2.0},
        "ageing": "2m",
    }
    stage.yard("queue", "assign", "development", "fresh", check=True)
    assert stage.job(stage.submit("true", **HERE))["queue"] == "new"
    assert stage.yard("queue", "rm", "new", "--force").returncode == EXIT_CONFLICT, "the domain names its tag"
    stage.yard("queue", "unassign", "development", check=True)
    assert stage.yard("queue", "rm", "new").returncode == EXIT_USAGE, "without a terminal it is not asked"
    stage.yard("queue", "rm", "new", "--force", check=True)
    assert stage.yard("queue", "show", "new").returncode == EXIT_NOT_FOUND
    listed = stage.yard("queue", "ls", check=True).stdout
    assert "built in" in listed
    assert "new" not in listed
    audit = [entry for entry in stage.walk("/v1/audit", limit=100) if entry["object"] == "new"]
    assert [entry["action"] for entry in audit] == ["queue.delete", "queue.put", "queue.put"]
    assert audit[1]["before"]["limits"] == {"running": 0}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--limit", "many"], "--limit: 'many' is not a whole number, nor 'none'"),
        (["--limit", "-1"], "limits"),
        (["--weight", "vision"], "NAME=VALUE"),
        (["--weight", "vision=0"], "the weight 0 of vision"),
        (["--native", "a=two words"], "native"),
        (["--ageing", "soon"], "'soon' is not a duration"),
        (["--attribute", "x", "--no-attributes"], "not both"),
        (["--attribute", "x", "--attribute", "x"], "given twice"),
    ],
)
def test_a_bad_setting_is_refused_by_the_command_line(stage: Stage, words: list[str], says: str) -> None:
    done = stage.yard("queue", "set", "bad", *words)
    assert done.returncode == EXIT_USAGE
    assert says in done.stderr
    assert stage.yard("queue", "show", "bad").returncode == EXIT_NOT_FOUND


def test_a_write_says_what_it_has_seen(stage: Stage) -> None:
    assert stage.call("PUT", "/v1/queues/fast", {}).status == 428
    assert stage.call("PUT", "/v1/queues/fast", {}, headers=FIRST).status == 412
    assert stage.call("PUT", "/v1/queues/fast", {}, headers={"If-Match": '"other"'}).status == 412
    assert stage.call("PUT", "/v1/queues/x", {"limits": {"running": 1.5}}, headers=FIRST).status == 400
    assert stage.call("PUT", "/v1/queues/x", {"colour": "red"}, headers=FIRST).status == 400
    seen = stage.call("GET", "/v1/queues/fast")
    same = seen.json["queue"]
    put = stage.call("PUT", "/v1/queues/fast", same, headers={"If-Match": seen.headers["etag"]})
    assert (put.status, put.json["source"]) == (200, "set")
    assert stage.call("DELETE", "/v1/queues/fast?reset=true", headers=ANY).status == 200
    assert stage.get("/v1/queues/fast")["source"] == "file"


def test_every_mistake_in_the_file_is_said_at_once(tmp_path: Path) -> None:
    text = """\
queues:
  - {name: q, limits: {running: -1}, speed: 9}
  - {name: "no name", attributes: ["a b"], weights: {p: 0}}
  - {name: r, ageing: soon, native: {a: "two words"}}
  - {attributes: []}
  - {name: q}
domains: [{id: development, tags: [nowhere]}]
"""
    argv = [*YARD, "server", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:1", "--no-auth"]
    with Program(
        [*argv, "--config", write(tmp_path, text)], tmp_path, name="refused", env=isolated_env(tmp_path)
    ) as run:
        assert run.wait() == EXIT_USAGE, run.tail()
        said = run.log
    for place in (
        "queues[0].limits.running",
        "queues[0].speed: unknown key",
        "(line 2, column 38)",
        "queues[1].name",
        "queues[1].attributes[0]",
        "queues[1].weights.p",
        "queues[2].native.a",
        "queues[3].name: missing (line 5, column 5)",
    ):
        assert place in said, (place, said)


# --- two servers

LIMIT = 3
JOBS = 18  # and the five tasks of an array: some begin before, between and after the two kills
LIMITED = f"queues: [{{name: few, attributes: [few], limits: {{running: {LIMIT}}}}}]\n"


def test_a_limit_holds_at_two_servers_whose_leader_is_killed(tmp_path: Path, postgres: Postgres) -> None:
    url, marks = migrated(postgres), tmp_path / "marks"
    extra = ["--config", write(tmp_path, LIMITED)]
    command = ["sh", "-c", CROWD]
    with (
        start_server(tmp_path, database=url, name="one", extra=extra) as one,
        start_server(tmp_path, database=url, name="two", extra=extra) as two,
        start_agent(tmp_path, one.url, "alpha", graph=WIDE),
        start_agent(tmp_path, two.url, "beta", graph=WIDE),
        Client(one.url, retry_s=PATIENCE_S) as here,
        Client(two.url, retry_s=PATIENCE_S) as there,
    ):
        with ThreadPoolExecutor(1) as aside:
            made = aside.submit(
                lambda: [
                    (here if number % 2 else there)
                    .submit(command, env={"CROWD": str(marks)}, tags=["few"], array="0-4" if number == 7 else None)
                    .id
                    for number in range(JOBS)
                ]
            )
            open_gate_at(marks, LIMIT)
            for victim in (one, two):  # whoever leads is among them
                seen = marks.stat().st_size if marks.exists() else 0
                until(lambda seen=seen: marks.exists() and marks.stat().st_size > seen + 8, PATIENCE_S, "some begin")
                victim.kill()
                victim.start()
                victim.wait_ready()
            found = wait_all_final(here, made.result(PATIENCE_S), 90)
        assert {job.state for job in found.values()} == {State.SUCCEEDED}
        assert most_at_once(marks) == LIMIT
        here.put_queue("few", Queue(attributes=["few"], limits=QueueLimits(running=0)), etag=here.queue("few").etag)
        until(lambda: there.queue("few").queue.limits.running == 0, SOON_S, "the other server has it")
        late = there.submit(["true"], tags=["few"])
        assert late.refresh().state is State.PENDING
        there.delete_queue("few", reset=True)
        assert late.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
