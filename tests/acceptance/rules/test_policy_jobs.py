"""What each kind of attribute does to a job: what reaches the process, how many run at once, preemption, lateness."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.faults.crowd import CROWD, most_at_once, open_gate_at
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import END_S, SOON_S, Stage, staged
from tests.processes import until
from tests.programs import call, start_agent, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

CONFIG, PLUGIN = "workflow-execution-config", "plugin-override"
NAMES = "quality_of_service: {tierExecutionValues: {HIGH: {queueingBudget: 1s}}}\n"
NODES = {"nodes": 1, "each": {"core": 16, "memory": "8GiB"}}
# Each job says when it comes and when it goes, and stays until there is no doubt that others could have come too.


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("policy")
    (folder / "config.yaml").write_text(NAMES)
    with staged(folder, extra=["--config", str(folder / "config.yaml")]) as made, made.agent("alpha", cores=16):
        yield made


@pytest.fixture
def project(stage: Stage, request: pytest.FixtureRequest) -> str:
    """A project of the test's own: its rules touch no other."""
    name = f"p{abs(hash(request.node.name)) % 10**8}"
    stage.post("/v1/projects", {"name": name})
    return name


def rule(url: str, kind: str, value: Any, **scope: str) -> None:
    where = "&".join(f"{word}={name}" for word, name in scope.items())
    path = f"{url}/v1/attributes/{kind}?{where}"
    seen = call("GET", path)
    headers = {"If-Match": seen.headers["etag"]} if seen.status == 200 else {"If-None-Match": "*"}
    answer = call("PUT", path, value, headers=headers)
    assert answer.status == 200, answer.body


def test_execution_config_reaches_the_process(stage: Stage, project: str) -> None:
    rule(
        stage.url,
        CONFIG,
        {
            "envs": {"FROM_RULE": "rule", "BOTH": "rule"},
            "labels": {"team": "red"},
            "annotations": {"example.org/note": "hello"},
            "security_context": {"run_as": {"iam_role": "arn:role", "k8s_service_account": "worker"}},
            "raw_output_data_config": {"output_location_prefix": "s3://bucket/raw/"},
            "interruptible": False,
            "overwrite_cache": True,
        },
        project=project,
        domain="development",
    )
    job = stage.submit("env", project=project, workflow="flow", spec={"env": {"BOTH": "job", "OWN": "job"}})
    stage.ended(job)
    seen = dict(line.split("=", 1) for line in stage.raw("logs", job)[0].decode().splitlines() if "=" in line)
    assert (seen["FROM_RULE"], seen["BOTH"], seen["OWN"]) == ("rule", "job", "job")
    assert seen["SWITCHYARD_OUTPUT_PREFIX"] == f"s3://bucket/raw/{job}"
    assert seen["SWITCHYARD_OVERWRITE_CACHE"] == "true"
    assert seen["SWITCHYARD_INTERRUPTIBLE"] == "false"
    assert seen["SWITCHYARD_WORKFLOW"] == "flow"
    assert (seen["SWITCHYARD_IAM_ROLE"], seen["SWITCHYARD_SERVICE_ACCOUNT"]) == ("arn:role", "worker")
    assert json.loads(seen["SWITCHYARD_LABELS"]) == {"team": "red"}
    assert json.loads(seen["SWITCHYARD_ANNOTATIONS"]) == {"example.org/note": "hello"}
    assert stage.job(job)["labels"] == {"team": "red"}


def test_the_job_comes_before_the_rules_field_by_field(stage: Stage, project: str) -> None:
    rule(stage.url, CONFIG, {"envs": {"A": "rule"}, "annotations": {"a": "rule"}}, project=project)
    own = {"execution": {"envs": {"B": "job"}}}
    job = stage.submit("env", project=project, spec=own, labels={"mine": "1"})
    stage.ended(job)
    seen = stage.raw("logs", job)[0].decode().splitlines()
    assert "B=job" in seen
    assert not any(line.startswith("A=") for line in seen)  # a map is replaced whole
    used = {value["field"]: value["level"] for value in stage.job(job)["policy"]["values"]}
    assert used == {"annotations": "project", "envs": "request", "labels": "request"}
    said = stage.yard("explain", job, check=True).stdout
    assert "annotations" in said
    assert "project" in said


@pytest.mark.parametrize("what", ["array", "workflow"])
def test_max_parallelism_bounds_an_array_and_a_workflow(stage: Stage, project: str, what: str) -> None:
    rule(stage.url, CONFIG, {"max_parallelism": 2}, project=project)
    file = stage.folder / f"crowd-{what}"
    fields = {"spec": {"env": {"CROWD": str(file)}}, "project": project}
    if what == "array":
        jobs = [stage.submit("sh", "-c", CROWD, array="0-5", **fields)]
    else:
        jobs = [stage.submit("sh", "-c", CROWD, workflow="flow", **fields) for _ in range(6)]
    open_gate_at(file, 2)
    for job in jobs:
        assert stage.ended(job)["state"] == State.SUCCEEDED
    assert most_at_once(file) == 2
    assert file.read_text().count("+") == 6


@pytest.mark.slow  # test_policy_kill.py has the same, and kills a server and an agent meanwhile
def test_the_bound_of_a_workflow_holds_across_servers_and_clusters(tmp_path: Path, postgres: Postgres) -> None:
    url, file = migrated(postgres), tmp_path / "crowd"
    with (
        start_server(tmp_path, database=url, name="one") as one,
        start_server(tmp_path, database=url, name="two") as two,
        start_agent(tmp_path, one.url, "alpha", graph=NODES),
        start_agent(tmp_path, two.url, "beta", graph=NODES),
    ):
        rule(one.url, CONFIG, {"max_parallelism": 3}, project="default", domain="development", workflow="flow")
        body = {
            "spec": {"command": ["sh", "-c", CROWD], "env": {"CROWD": str(file)}},
            "workflow": "flow",
        }
        until(lambda: parallel_max(two.url) == 3, SOON_S, "the other server knows the rule")
        ids = [call("POST", f"{(one, two)[n % 2].url}/v1/jobs", body).json["id"] for n in range(12)]

        def are_over() -> bool:
            states = {job["state"] for job in call("GET", f"{one.url}/v1/jobs?limit=50").json["items"]}
            return states == {"SUCCEEDED"}

        open_gate_at(file, 3)
        until(are_over, 2 * END_S, "all jobs have succeeded")
    assert most_at_once(file) == 3
    assert file.read_text().count("+") == len(ids)


def parallel_max(url: str) -> int | None:
    scope = "project=default&domain=development&workflow=flow"
    found: int | None = (
        call("GET", f"{url}/v1/attributes/{CONFIG}/effective?{scope}").json["value"].get("max_parallelism")
    )
    return found


def test_a_changed_row_is_seen_by_the_next_submit_here_and_soon_elsewhere(tmp_path: Path, postgres: Postgres) -> None:
    url = migrated(postgres)
    with (
        start_server(tmp_path, database=url, name="one") as one,
        start_server(tmp_path, database=url, name="two") as two,
        start_agent(tmp_path, one.url, "alpha", graph=NODES),
    ):
        body = {"spec": {"command": ["true"], "resources": {"cores": 4}}}
        for limit, status in ((2, 422), (8, 201), (3, 422)):
            rule(one.url, "task-resource-attribute", {"limits": {"cpu": str(limit)}}, project="default")
            assert call("POST", f"{one.url}/v1/jobs", body).status == status

            def knows(status: int = status) -> bool:
                return call("POST", f"{two.url}/v1/jobs", body).status == status

            until(knows, SOON_S, "the other server knows the rule")


def test_a_preempted_job_runs_again_without_a_retry_if_it_is_interruptible(stage: Stage, project: str) -> None:
    agent = ScriptedAgent(stage, "spot")
    rule(stage.url, CONFIG, {"interruptible": True}, project=project)
    job = stage.submit("true", project=project, cluster="spot")
    (first,) = agent.lease()
    assert agent.report(first, "RUNNING", "FAILED", cause="preempted", reason="spot reclaimed") == ["taken", "taken"]
    (second,) = until(agent.lease, SOON_S, "it is leased again")
    assert (second["job"], second["fence"] > first["fence"]) == (job, True)
    agent.report(second, "RUNNING", "SUCCEEDED", exit_code=0)
    ended = stage.ended(job)
    assert (ended["state"], ended.get("tries", 0), ended["attempt"]) == ("SUCCEEDED", 0, 2)
    assert "preempted" in {event["kind"] for event in stage.get(f"/v1/jobs/{job}/events")["items"]}
    firm = stage.submit("true", cluster="spot")
    (lease,) = agent.lease()
    agent.report(lease, "RUNNING", "FAILED", cause="preempted")
    assert stage.ended(firm)["state"] == "FAILED"


def test_a_plugin_override_chooses_among_the_backends_of_a_cluster(stage: Stage, project: str) -> None:
    one = ScriptedAgent(stage, "both", name="one", backend="local")
    two = ScriptedAgent(stage, "both", name="two", backend="slurm")
    override = {"task_type": "container", "plugin_id": ["slurm"]}
    rule(stage.url, PLUGIN, {"overrides": [override]}, project=project)
    job = stage.submit("true", project=project, cluster="both", spec={"task_type": "container"})
    plain = stage.submit("true", project=project, cluster="both")
    assert [lease["job"] for lease in one.lease(5)] == [plain]
    assert [lease["job"] for lease in two.lease(5)] == [job]
    refused = stage.submitted("true", project=project, cluster="alpha", spec={"task_type": "container"})
    assert (refused["state"], "none of the backends slurm" in refused["reason"]) == ("REJECTED", True)


def test_a_job_that_waits_beyond_its_queueing_budget_is_reported_late(stage: Stage, project: str) -> None:
    rule(stage.url, "quality-of-service", {"tier": "HIGH"}, project=project)
    stage.post("/v1/clusters", {"name": "asleep"})
    job = stage.submit("true", project=project, cluster="asleep")
    late = until(lambda: seen if (seen := stage.job(job)).get("late_us") else None, SOON_S, "it is reported late")
    assert late["state"] == "PENDING"
    events = [event for event in stage.get(f"/v1/jobs/{job}/events")["items"] if event["kind"] == "late"]
    assert len(events) == 1
    assert "late" in stage.yard("ls", "--project", project, check=True).stdout
    assert "late" in stage.yard("explain", job, check=True).stdout
    patient = stage.submit("true", project=project, cluster="asleep", quality_of_service={"queueing_budget": "1h"})
    assert "late_us" not in stage.job(patient)
