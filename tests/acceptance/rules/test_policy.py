"""Scopes and attributes over HTTP: projects, rows at five levels, conditions, lists, history, what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S
from tests.programs import YARD, Answer, isolated_env
from tests.soak import SOAKED

CONFIG = """
clusters:
  clusterConfigs: [{name: alpha, endpoint: 127.0.0.1, enabled: true}]
  poolNameClusterMap: {D: [{id: alpha, weight: 1}], P: [{id: alpha, weight: 2}], PD: [{id: alpha}], W: [{id: alpha}],
                       L: [{id: alpha, weight: 99}], platform: [{id: alpha, weight: 6}]}
  labelClusterMap: {D: [{id: alpha}], P: [{id: alpha}], PD: [{id: alpha}], W: [{id: alpha}], L: [{id: alpha}]}
  clusterPoolAssignments: {production: {pool: platform}}
queues: [{name: fast, attributes: [D, P, PD, W, L]}]
task_resources: {limits: {cpu: 64}}
execution_config: {max_parallelism: 1000}
quality_of_service:
  tierExecutionValues: {HIGH: {queueingBudget: 10m}, MEDIUM: {queueingBudget: 20m}, LOW: {queueingBudget: 30m}}
"""
LEVELS = {
    "domain": "domain=development",
    "project": "project=web",
    "project+domain": "domain=development&project=web",
    "workflow": "domain=development&project=web&workflow=flow",
    "launch-plan": "domain=development&project=web&workflow=flow&launch_plan=nightly",
}
BOTTOM = LEVELS["launch-plan"]
SHORT = {"domain": "D", "project": "P", "project+domain": "PD", "workflow": "W", "launch-plan": "L"}
NUMBER = {level: number for number, level in enumerate(LEVELS, start=2)}
TASK, LABEL = "task-resource-attribute", "execution-cluster-label"
# Of each kind the field that is looked at, and a value per level.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    TASK: ("limits.cpu", {level: {"limits": {"cpu": str(number)}} for level, number in NUMBER.items()}),
    "cluster-resource-attribute": (
        "attributes.projectQuotaCpu",
        {level: {"attributes": {"projectQuotaCpu": str(NUMBER[level])}} for level in list(LEVELS)[:3]},
    ),
    "execution-queue-attribute": ("tags", {level: {"tags": [word]} for level, word in SHORT.items()}),
    LABEL: ("value", {level: {"value": word} for level, word in SHORT.items()}),
    "quality-of-service": (
        "queueing_budget",
        {level: {"queueing_budget": f"{number}m"} for level, number in NUMBER.items()},
    ),
    "plugin-override": (
        "overrides.container",
        {level: {"overrides": [{"task_type": "container", "plugin_id": [word]}]} for level, word in SHORT.items()},
    ),
    "workflow-execution-config": (
        "max_parallelism",
        {level: {"max_parallelism": number} for level, number in NUMBER.items()},
    ),
    "cluster-assignment": (
        "cluster_pool_name",
        {level: {"cluster_pool_name": word} for level, word in SHORT.items()},
    ),
}

OFTEN = (TASK, "cluster-resource-attribute", LABEL)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("policy")
    (folder / "config.yaml").write_text(CONFIG)
    with staged(folder, extra=["--config", str(folder / "config.yaml")]) as made, made.agent("alpha", cores=128):
        for name in ("web", "other"):
            made.post("/v1/projects", {"name": name})
        yield made


def put(stage: Stage, kind: str, scope: str, value: Any, **headers: str) -> Answer:
    return stage.call("PUT", f"/v1/attributes/{kind}?{scope}", value, headers=headers or {"If-None-Match": "*"})


def delete(stage: Stage, kind: str, scope: str) -> Answer:
    return stage.call("DELETE", f"/v1/attributes/{kind}?{scope}", headers={"If-Match": "*"})


# Merged by its fields, with three levels alone, replaced whole: the others are like these, in `make soak`.
@pytest.mark.parametrize("kind", [kind if kind in OFTEN else SOAKED(kind) for kind in KINDS])
def test_all_levels_of_a_kind_from_the_highest_to_the_lowest_with_provenance(stage: Stage, kind: str) -> None:
    field, values = KINDS[kind]
    rows = {level: put(stage, kind, LEVELS[level], value).json for level, value in values.items()}
    for level in reversed(values):
        found = {each["field"]: each for each in stage.get(f"/v1/attributes/{kind}/effective?{BOTTOM}")["fields"]}
        assert (found[field]["level"], found[field]["row"]) == (level, rows[level]["id"])
        assert found[field]["scope"] == rows[level]["scope"]
        shown = {each["kind"]: each for each in stage.get(f"/v1/policy?{BOTTOM}")["attributes"]}
        assert found[field] in shown[kind]["fields"]
        assert stage.get(f"/v1/attributes/{kind}?{LEVELS[level]}")["value"] == values[level]
        assert delete(stage, kind, LEVELS[level]).status == 200
    left = {each["field"]: each["level"] for each in stage.get(f"/v1/attributes/{kind}/effective?{BOTTOM}")["fields"]}
    assert set(left.values()) <= {"platform"}


def test_a_job_obeys_the_most_specific_level_and_the_refusal_names_it(stage: Stage) -> None:
    """From the platform's limit down to the launch plan's: each lower level that is set is the one that counts."""
    base = {"project": "web", "workflow": "flow", "launch_plan": "nightly"}

    def refusal(cores: int) -> str:
        answer = stage.call("POST", "/v1/jobs", {"spec": spec(cores), **base})
        assert answer.status == 422, answer.body
        assert answer.json["code"] == "policy-refused"
        return str(answer.json["detail"])

    assert "the limit is 64 (platform config)" in refusal(65)
    for level, number in reversed(NUMBER.items()):
        assert put(stage, TASK, LEVELS[level], {"limits": {"cpu": str(number)}}).status == 200
        said = refusal(64) if level == "launch-plan" else ""
        assert not said or f"asks for 64, and the limit is {number} (launch-plan level" in said
    for level, number in reversed(NUMBER.items()):
        assert f"the limit is {number} ({level} level" in refusal(number + 1)
        assert stage.call("POST", "/v1/jobs", {"spec": spec(number), **base}).status == 201
        delete(stage, TASK, LEVELS[level])


def spec(cores: int | str) -> dict[str, Any]:
    return {"command": ["true"], "resources": {"cores": cores}}


def test_limits_are_exact(stage: Stage) -> None:
    put(stage, TASK, "project=other", {"defaults": {"memory": "150Mi"}, "limits": {"cpu": "500m", "gpu": "1"}})
    refused = stage.call("POST", "/v1/jobs", {"spec": spec("900m"), "project": "other"})
    assert "asks for 900m, and the limit is 500m (project level: project other)" in refused.json["detail"]
    made = stage.post("/v1/jobs", {"spec": spec("500m"), "project": "other"})
    job = stage.job(made["id"])
    assert job["spec"]["resources"] == {
        "cores": "500m",
        "memory": "150Mi",
        "limits": {"cores": "500m", "memory": "150Mi"},
    }
    used = {value["field"]: (value["value"], value["level"]) for value in job["policy"]["values"]}
    assert used["defaults.memory"] == ("150Mi", "project")
    assert used["limits.cpu"] == ("500m", "project")
    assert "limits.gpu" not in used
    assert "150Mi" in stage.yard("explain", made["id"], check=True).stdout
    delete(stage, TASK, "project=other")


def test_a_job_may_name_a_workflow_and_a_launch_plan(stage: Stage) -> None:
    made = stage.read("submit", "--project", "web", "--workflow", "mod.wf", "--launch-plan", "lp", "--", "true")
    other = stage.read("submit", "--project", "web", "--workflow", "mod.other", "--", "true")
    job = stage.job(made["id"])
    assert (job["workflow"], job["launch_plan"]) == ("mod.wf", "lp")
    assert stage.yard("ls", "--workflow", "mod.wf", "-o", "name", check=True).stdout.split() == [made["id"]]
    assert stage.yard("ls", "--launch-plan", "lp", "-o", "name", check=True).stdout.split() == [made["id"]]
    assert other["id"] in stage.yard("ls", "--all", "-o", "name", check=True).stdout
    refused = stage.yard("submit", "--launch-plan", "lp", "--", "true")
    assert refused.returncode == 2
    assert "belongs to a workflow" in refused.stderr


def test_projects_are_made_changed_archived_and_brought_back(stage: Stage) -> None:
    stage.post("/v1/projects", {"name": "shelf", "title": "The shelf", "labels": {"team": "red"}})
    assert stage.get("/v1/projects/shelf")["title"] == "The shelf"
    job = stage.job(stage.submit("true", project="shelf"))
    assert job["labels"] == {"team": "red"}
    changed = stage.call("PATCH", "/v1/projects/shelf", {"description": "old things", "is_archived": True}).json
    assert (changed["description"], changed["is_archived"]) == ("old things", True)
    assert "shelf" in {project["name"] for project in stage.get("/v1/projects?limit=500")["items"]}
    refused = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "project": "shelf"})
    assert (refused.status, "archived" in refused.json["detail"]) == (400, True)
    assert put(stage, LABEL, "project=shelf", {"value": "D"}).status == 400
    stage.call("PATCH", "/v1/projects/shelf", {"is_archived": False})
    stage.submit("true", project="shelf")
    assert stage.call("PATCH", "/v1/projects/default", {"is_archived": True}).status == 409
    assert stage.call("GET", "/v1/projects/nobody").status == 404
    assert [domain["id"] for domain in stage.get("/v1/domains")["items"]] == ["development", "production", "staging"]


def test_a_write_says_what_it_has_seen(stage: Stage) -> None:
    here = "domain=staging&project=web"
    assert stage.call("PUT", f"/v1/attributes/{LABEL}?{here}", {"value": "D"}).status == 428
    made = put(stage, LABEL, here, {"value": "D"})
    assert made.headers["etag"] == f'"{made.json["etag"]}"'
    assert put(stage, LABEL, here, {"value": "P"}).status == 412
    changed = put(stage, LABEL, here, {"value": "P"}, **{"If-Match": made.headers["etag"]})
    assert (changed.status, changed.headers["etag"] != made.headers["etag"]) == (200, True)
    late = put(stage, LABEL, here, {"value": "W"}, **{"If-Match": made.headers["etag"]})
    assert (late.status, late.json["code"]) == (412, "outdated")
    assert stage.call("DELETE", f"/v1/attributes/{LABEL}?{here}").status == 428
    stale = {"If-Match": made.headers["etag"]}
    assert stage.call("DELETE", f"/v1/attributes/{LABEL}?{here}", headers=stale).status == 412
    read = stage.call("GET", f"/v1/attributes/{LABEL}?{here}")
    assert (read.json["value"], read.headers["etag"]) == ({"value": "P"}, changed.headers["etag"])
    assert delete(stage, LABEL, here).status == 200
    assert delete(stage, LABEL, here).status == 404
    history = stage.get(f"/v1/attributes/{LABEL}/history?{here}")["items"]
    assert [(entry["action"], entry.get("before"), entry.get("after")) for entry in history] == [
        ("attribute.delete", {"value": "P"}, None),
        ("attribute.put", {"value": "D"}, {"value": "P"}),
        ("attribute.put", None, {"value": "D"}),
    ]
    assert all(entry["actor"] and entry["at_us"] for entry in history)


def test_writers_at_once_never_overwrite_each_other_unseen(stage: Stage) -> None:
    """Each adds its own name to the list it read; who comes too late reads again. At the end all are there."""
    here, kind = "domain=development&project=other", "cluster-resource-attribute"

    def add(number: int) -> None:
        for _ in range(100):
            seen = stage.call("GET", f"/v1/attributes/{kind}?{here}")
            headers = {"If-Match": seen.headers["etag"]} if seen.status == 200 else {"If-None-Match": "*"}
            had = seen.json["value"]["attributes"] if seen.status == 200 else {}
            if put(stage, kind, here, {"attributes": {**had, f"key{number}": "x"}}, **headers).status == 200:
                return
        raise AssertionError("it never got its turn")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    assert len(stage.get(f"/v1/attributes/{kind}?{here}")["value"]["attributes"]) == 16
    delete(stage, kind, here)


def test_rows_are_listed_by_kind_in_pages_and_filtered(stage: Stage) -> None:
    for level, scope in LEVELS.items():
        put(stage, LABEL, scope, {"value": SHORT[level]})
    put(stage, LABEL, "project=other", {"value": "P"})
    walked = stage.walk(f"/v1/attributes/{LABEL}/list", limit=2)
    assert [row["level"] for row in walked] == [*reversed(list(LEVELS)[2:]), "project", "project", "domain"]
    web = stage.get(f"/v1/attributes/{LABEL}/list?project=web&level=project")["items"]
    assert [row["scope"] for row in web] == [{"project": "web"}]
    # Deleting one touches that one.
    delete(stage, LABEL, LEVELS["project"])
    assert len(stage.get(f"/v1/attributes/{LABEL}/list")["items"]) == 5
    for scope in (*LEVELS.values(), "project=other"):
        delete(stage, LABEL, scope)


BAD: list[tuple[str, str, str, Any, int, str]] = [
    ("unknown kind", "no-such", "project=web", {}, 400, "no attribute kind"),
    ("unknown project", LABEL, "project=nobody", {"value": "D"}, 400, "no project"),
    ("unknown domain", LABEL, "domain=nowhere", {"value": "D"}, 400, "no domain"),
    ("no scope", LABEL, "", {"value": "D"}, 400, "give a domain, a project, or both"),
    ("workflow alone", LABEL, "workflow=w", {"value": "D"}, 400, "lies in a project and a domain"),
    ("launch plan alone", LABEL, "project=web&domain=staging&launch_plan=l", {"value": "D"}, 400, "to a workflow"),
    ("bad name", LABEL, "project=a%20b", {"value": "D"}, 400, "a project's name"),
    ("unknown parameter", LABEL, "project=web&flow=w", {"value": "D"}, 400, "no parameter 'flow'"),
    ("unknown label", LABEL, "project=web", {"value": "mars"}, 400, "no label 'mars'; known: D, L, P, PD, W"),
    ("unknown pool", "cluster-assignment", "project=web", {"cluster_pool_name": "x"}, 400, "no pool 'x'"),
    ("unknown tag", "execution-queue-attribute", "project=web", {"tags": ["x"]}, 400, "no queue has the tag 'x'"),
    ("unknown field", LABEL, "project=web", {"value": "D", "more": 1}, 400, "unknown field `more`"),
    ("bad quantity", TASK, "project=web", {"limits": {"cpu": "200Q"}}, 400, "200Q"),
    ("fraction of a gpu", TASK, "project=web", {"limits": {"gpu": "0.5"}}, 400, "whole"),
    ("default above limit", TASK, "project=web", {"defaults": {"cpu": 4}, "limits": {"cpu": 2}}, 400, "above its own"),
    ("bad duration", "quality-of-service", "project=web", {"queueing_budget": "soon"}, 400, "not a duration"),
    ("a list", LABEL, "project=web", ["D"], 400, "Expected `object`"),
    (
        "workflow of a namespace",
        "cluster-resource-attribute",
        LEVELS["workflow"],
        {"attributes": {"a": "b"}},
        400,
        "lev",
    ),
    ("reserved name", "cluster-resource-attribute", "project=web", {"attributes": {"project": "b"}}, 400, "own"),
]


@pytest.mark.parametrize(("name", "kind", "scope", "value", "status", "said"), BAD, ids=[row[0] for row in BAD])
def test_what_cannot_be_written(
    stage: Stage, name: str, kind: str, scope: str, value: Any, status: int, said: str
) -> None:
    answer = put(stage, kind, scope, value)
    assert (answer.status, said in answer.json["detail"]) == (status, True), answer.body
    assert answer.json["next_step"]


BAD_JOBS: list[tuple[dict[str, Any], int, str]] = [
    ({"pool": "nope"}, 400, "no pool 'nope'"),
    ({"cluster_label": "nope"}, 400, "no label 'nope'"),
    ({"tags": ["nope"]}, 400, "no queue tag 'nope'"),
    ({"domain": "production", "pool": "D"}, 422, "asks for 'D', and its scope is bound to 'platform'"),
    ({"launch_plan": "l"}, 400, "belongs to a workflow"),
    ({"quality_of_service": {"tier": "BEST"}}, 400, "BEST"),
    ({"domain": "nowhere"}, 400, "no domain"),
    ({"project": "nobody"}, 400, "no project"),
]


@pytest.mark.parametrize(("fields", "status", "said"), BAD_JOBS, ids=lambda value: str(value)[:50])
def test_what_cannot_be_submitted(stage: Stage, fields: dict[str, Any], status: int, said: str) -> None:
    answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "project": "web", **fields})
    assert (answer.status, said in answer.json["detail"]) == (status, True), answer.body


def test_a_config_with_mistakes_stops_the_start_and_all_are_listed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        """
clusters:
  labelClusterMap: {near: [{id: a}, {id: a}]}
  defaultExecutionLabel: far
  clusterPoolAssignments: {mars: {pool: gpu}}
domains: [{id: development, tags: [nope]}, development]
task_resources: {defaults: {cpu: 4, memory: 16GiB}, limits: {cpu: 2, gpu: 0.5}}
quality_of_service: {tierExecutionValues: {HIGH: {queueingBudget: soon}}, defaultTiers: {development: BEST}}
queues: [{name: a}, {name: a}]
"""
    )
    done = subprocess.run(
        [*YARD, "server", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:1", "--no-auth", "--config", str(bad)],
        env=isolated_env(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    for said in (
        "labelClusterMap.near: 'a' is given twice",
        "defaultExecutionLabel: labelClusterMap has no label 'far'",
        "clusterPoolAssignments.mars: there is no such domain",
        "no pool 'gpu'",
        "domains: 'development' is given twice",
        "no queue has the tag 'nope'",
        "task_resources.defaults.memory: '16GiB'",
        "task_resources.limits.gpu: gpu is a whole number",
        "defaults.cpu (4) is above its own limit (2)",
        "tierExecutionValues.HIGH.queueingBudget: 'soon'",
        "defaultTiers.development: unknown tier 'BEST'",
        "queues: 'a' is given twice",
    ):
        assert said in done.stderr, f"{said!r} is not in\n{done.stderr}"
