"""The rules on the command line, in the words of Flyte's users: get, update, delete, history, explain, projects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.acceptance.stage import Stage, staged
from tests.cli.conftest import Terminal

TRA = """\
project: flyteexamples
domain: development
defaults:
    cpu: "1"
    memory: 150Mi
limits:
    cpu: "2"
    memory: 450Mi
"""
CRA = """\
domain: development
project: flyteexamples
attributes:
    projectQuotaCpu: "1000"
    projectQuotaMemory: 5Ti
"""
EC = """\
value: mycluster
domain: development
project: flyteexamples
"""
CONFIG = {
    "clusters": {
        "clusterConfigs": [{"name": "alpha"}, {"name": "beta"}],
        "labelClusterMap": {"mycluster": [{"id": "alpha", "weight": 1}], "x": [{"id": "beta"}]},
        "poolNameClusterMap": {"gpu": [{"id": "alpha"}]},
    },
    "queues": [{"name": "fast", "attributes": ["critical", "default"]}],
    "quality_of_service": {"tierExecutionValues": {"HIGH": {"queueingBudget": "1m"}}},
    "task_resources": {"limits": {"cpu": 8}},
}
KINDS = {
    "task-resource-attribute": "limits: {cpu: '4'}\n",
    "cluster-resource-attribute": "attributes: {projectQuotaCpu: '7'}\n",
    "execution-cluster-label": "value: x\n",
    "execution-queue-attribute": "tags: [critical]\n",
    "workflow-execution-config": "max_parallelism: 5\n",
    "plugin-override": "overrides: [{task_type: container, plugin_id: [local]}]\n",
    "cluster-assignment": "cluster_pool_name: gpu\n",
    "quality-of-service": "tier: HIGH\n",
}
SCOPES = {
    "domain": ["-d", "staging"],
    "project": ["-p", "levels"],
    "project+domain": ["-p", "levels", "-d", "staging"],
    "workflow": ["-p", "levels", "-d", "staging", "train"],
    "launch-plan": ["-p", "levels", "-d", "staging", "train", "--launch-plan", "nightly"],
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "yard.yaml").write_text(json.dumps(CONFIG))
    with staged(folder, extra=["--config", str(folder / "yard.yaml")]) as made:
        for project in ("flyteexamples", "flytesnacks", "levels"):
            made.yard("project", "create", project, check=True)
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "attributes.yaml"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("task-resource-attribute", TRA), ("cluster-resource-attribute", CRA), ("execution-cluster-label", EC)],
)
@pytest.mark.parametrize("option", ["--attrFile", "--attr-file"])
def test_the_files_of_flytes_users_work_as_they_are(
    stage: Stage, file: Path, kind: str, text: str, option: str
) -> None:
    file.write_text(text)
    stage.yard("update", kind, option, str(file), "--force", check=True)
    shown = stage.yard("get", kind, "-p", "flyteexamples", "-d", "development", check=True).stdout
    assert yaml.safe_load(shown) == yaml.safe_load(text)
    stage.yard("delete", kind, option, str(file), "--force", check=True)
    assert stage.yard("get", kind, "-p", "flyteexamples", "-d", "development").returncode == 3


# One kind with all levels and one with fewer; the others, which take minutes together, are in `make soak`.
OFTEN = ("task-resource-attribute", "cluster-resource-attribute")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in OFTEN else [pytest.mark.slow]) for kind in KINDS]
)
def test_a_delete_touches_exactly_its_row(stage: Stage, file: Path, kind: str) -> None:
    file.write_text(KINDS[kind])
    levels = [
        level for level in SCOPES if kind != "cluster-resource-attribute" or level not in ("workflow", "launch-plan")
    ]
    for level in levels:
        stage.yard("update", kind, *SCOPES[level], "--attr-file", str(file), "--force", check=True)
    for gone, level in enumerate(levels, start=1):
        stage.yard("delete", kind, *SCOPES[level], "--force", check=True)
        left = {row["level"] for row in stage.read("get", kind) if row["scope"].get("project", "levels") == "levels"}
        assert left == set(levels[gone:])


def test_levels_that_a_kind_does_not_have_are_named(stage: Stage, file: Path) -> None:
    file.write_text(KINDS["cluster-resource-attribute"])
    done = stage.yard("update", "cluster-resource-attribute", *SCOPES["workflow"], "--attr-file", str(file), "--force")
    assert done.returncode == 2
    assert "domain, project, project+domain" in done.stderr


def test_an_update_shows_what_changes_and_asks(stage: Stage, file: Path) -> None:
    file.write_text(TRA)
    base = ["update", "task-resource-attribute", "--attr-file", str(file)]
    # Without a terminal nobody can be asked: exit 2, and nothing is changed.
    refused = stage.yard(*base)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert stage.yard("get", "task-resource-attribute", "-p", "flyteexamples", "-d", "development").returncode == 3
    tried = stage.yard(*base, "--dryRun", check=True)
    assert "+  cpu: '2'" in tried.stdout
    assert stage.yard("get", "task-resource-attribute", "-p", "flyteexamples", "-d", "development").returncode == 3
    stage.yard(*base, "--force", check=True)
    file.write_text(TRA.replace("450Mi", "900Mi"))
    changed = stage.yard(*base, "--force", check=True).stdout.splitlines()
    assert "-  memory: 450Mi" in changed
    assert "+  memory: 900Mi" in changed
    assert "No change" in stage.yard(*base, check=True).stderr  # nothing to ask about
    stage.yard("delete", "task-resource-attribute", "--attr-file", str(file), "--force", check=True)


def test_a_row_that_was_changed_meanwhile_is_not_overwritten(stage: Stage, file: Path) -> None:
    path = "/v1/attributes/execution-cluster-label?project=flytesnacks"
    file.write_text("project: flytesnacks\nvalue: mycluster\n")

    def asked() -> Terminal:
        env = {key: stage.env[key] for key in ("YARD_URL", "YARD_CONFIG", "HOME")}
        shown = Terminal("update", "execution-cluster-label", "--attr-file", str(file), env=env)
        shown.until("Continue? [y/N]")
        return shown

    first = asked()
    answer = stage.call("PUT", path, {"value": "x"}, headers={"If-None-Match": "*"})
    assert answer.status == 200
    first.press("y\n")
    assert first.end() == 6
    assert stage.get(path)["value"] == {"value": "x"}
    second = asked()
    assert "-value: x" in second.shown
    stage.call("DELETE", path, headers={"If-Match": answer.headers["etag"]})
    second.press("y\n")
    assert second.end() == 6
    assert stage.call("GET", path).status == 404
    third = asked()
    third.press("n\n")
    assert third.end() == 1
    assert stage.call("GET", path).status == 404


@pytest.mark.parametrize(
    ("kind", "text", "scope", "value"),
    [
        (
            "task-resource-attribute",
            'project: flyteexamples\ndomain: development\ndefaults: {cpu: "1", memory: 150Mi}\n'
            'limits: {cpu: "2", memory: 450Mi}\n',
            {"project": "flyteexamples", "domain": "development"},
            {"defaults": {"cpu": "1", "memory": "150Mi"}, "limits": {"cpu": "2", "memory": "450Mi"}},
        ),
        (
            "execution-cluster-label",
            "value: mycluster\ndomain: development\nproject: flyteexamples\n",
            {"project": "flyteexamples", "domain": "development"},
            {"value": "mycluster"},
        ),
        (
            "workflow-execution-config",
            'project: flytesnacks\ndomain: ""\nworkflow: ""\nmax_parallelism: 5\n'
            "security_context: {run_as: {k8s_service_account: demo}}\n",
            {"project": "flytesnacks"},
            {"max_parallelism": 5, "security_context": {"run_as": {"k8s_service_account": "demo"}}},
        ),
        (
            "plugin-override",
            "domain: development\nproject: flytesnacks\noverrides:\n"
            "- {task_type: python_task, plugin_id: [a, b], missing_plugin_behavior: 1}\n",
            {"project": "flytesnacks", "domain": "development"},
            {
                "overrides": [
                    {"task_type": "python_task", "plugin_id": ["a", "b"], "missing_plugin_behavior": "USE_DEFAULT"}
                ]
            },
        ),
        (
            "workflow-execution-config",
            "project: flytesnacks\ndomain: staging\nworkflow: train\nlabels: {values: {a: b}}\n"
            "interruptible: {value: true}\nenvs: {values: [{key: A, value: b}]}\n",
            {"project": "flytesnacks", "domain": "staging", "workflow": "train"},
            {"labels": {"a": "b"}, "interruptible": True, "envs": {"A": "b"}},
        ),
        (
            "task-resource-attribute",
            "domain: staging\nlimits: {cpu: 3}\n",
            {"domain": "staging"},
            {"limits": {"cpu": "3"}},
        ),
    ],
)
def test_forms_that_flytectl_takes(
    stage: Stage, file: Path, kind: str, text: str, scope: object, value: object
) -> None:
    file.write_text(text)
    made = json.loads(stage.yard("update", kind, "--attrFile", str(file), "--force", "-o", "json", check=True).stdout)
    assert {key: text for key, text in made["scope"].items() if text} == scope
    assert made["value"] == value
    assert "No change" in stage.yard("update", kind, "--attrFile", str(file), check=True).stderr
    stage.yard("delete", kind, "--attrFile", str(file), "--force", check=True)


def test_cli_08_a_value_equal_to_the_inherited_one_is_still_written(stage: Stage, file: Path) -> None:
    for scope in (["-p", "levels"], ["-p", "levels", "-d", "development"]):
        file.write_text("value: x\n")
        stage.yard("update", "execution-cluster-label", *scope, "--attr-file", str(file), "--force", check=True)
    rows = [row for row in stage.read("get", "execution-cluster-label") if row["scope"]["project"] == "levels"]
    assert {row["level"] for row in rows} == {"project", "project+domain"}
    for scope in (["-p", "levels"], ["-p", "levels", "-d", "development"]):
        stage.yard("delete", "execution-cluster-label", *scope, "--force", check=True)


@pytest.mark.parametrize(
    ("argv", "text", "code", "said"),
    [
        (["update", "task-resource-attribute"], TRA.replace("cpu:", "cpuu:", 1), 2, "line 4, column 5: defaults.cpuu"),
        (["update", "task-resource-attribute"], TRA + "limit: 1\n", 2, "limit: unknown key; did you mean limits?"),
        (["update", "task-resource-attribute"], TRA.replace('"2"', '"0.5"'), 2, "above its own limit"),
        (["update", "task-resource-attribute"], TRA.replace("450Mi", "lots"), 2, "lots"),
        (["update", "task-resource-attribute", "--dry-run"], TRA.replace("450Mi", "lots"), 2, "lots"),
        (["update", "task-resource-attribute", "-p", "flytesnacks"], TRA, 2, "The file says project flyteexamples"),
        (["update", "task-resource-attribute", "--launch-plan", "l"], TRA, 2, "a launch plan belongs to a workflow"),
        (["update", "task-resource-attribute"], "limits: {cpu: '1'}\n", 2, "neither a project nor a domain"),
        (["update", "task-resource-attribute"], "workflow: w\nlimits: {cpu: '1'}\n", 2, "give both"),
        (["update", "task-resource-attribute"], "project: none\nlimits: {cpu: '1'}\n", 2, "no project 'none'"),
        (["update", "task-resource-attribute"], "domain: none\nlimits: {cpu: '1'}\n", 2, "no domain 'none'"),
        (["update", "task-resource-attribute"], "project: ''\ndomain: staging\nlimits: {cpu: '1'}\n", 2, "is empty"),
        (["update", "task-resource-attribute", "-p", ""], "domain: staging\nlimits: {cpu: '1'}\n", 2, "is empty"),
        (
            ["update", "workflow-execution-config"],
            "project: levels\nenvs: {values: [{key: A, value: a}, {key: A, value: b}]}\n",
            2,
            "'A' is given twice",
        ),
        (["update", "task-resource-atribute"], TRA, 2, "Did you mean task-resource-attribute?"),
        (["update", "execution-cluster-label"], "project: levels\nvalue: unknown\n", 2, "unknown"),
        (["update", "execution-queue-attribute"], "project: levels\ntags: [nope]\n", 2, "nope"),
        (["update", "cluster-assignment"], "project: levels\ncluster_pool_name: nope\n", 2, "nope"),
        (["update", "quality-of-service"], "project: levels\nqueueing_budget: soon\n", 2, "soon"),
        (["update", "cluster-resource-attribute"], "project: levels\nattributes: {namespace: kube}\n", 2, "namespace"),
        (["update", "plugin-override"], "project: levels\noverrides: []\n", 2, "overrides"),
        (["delete", "task-resource-attribute"], TRA, 3, "There is no task-resource-attribute"),
    ],
)
def test_mistakes_are_named_and_nothing_is_stored(
    stage: Stage, file: Path, argv: list[str], text: str, code: int, said: str
) -> None:
    file.write_text(text)
    done = stage.yard(*argv, "--attr-file", str(file), *(["--force"] if "--dry-run" not in argv else []))
    assert (done.returncode, stage.read("get", argv[1] if "atrib" not in argv[1] else "0")) == (code, [])
    assert said in done.stderr


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["get", "nonsense"], 2, "There is no kind of attribute 'nonsense'"),
        (["get", "task-resource-attribute", "-p", "flytesnacks", "-d", "development"], 3, "yard explain-policy"),
        (["update", "task-resource-attribute"], 2, "--attr-file"),
        (["delete", "task-resource-attribute"], 2, "neither a project nor a domain"),
        (["update", "task-resource-attribute", "--attr-file", "/nowhere/a.yaml"], 3, "no file"),
        (["update", "plugin-override", "--gen", "--attr-file", "/nowhere/a.yaml"], 1, "cannot be written"),
        (["get", "plugin-override", "--gen", "-o", "json"], 2, "Leave -o away"),
        (["get", "plugin-override", "--attr-file", "all.yaml"], 2, "A file holds one row"),
        (["project", "update", "levels"], 2, "nothing to change"),
        (["explain-policy", "-p", "flytesnacks"], 2, "-d/--domain"),
        (["explain-policy", "-p", "flytesnacks", "-d", "development", "--launch-plan", "l"], 2, "--workflow"),
        (["explain-policy", "-p", "none", "-d", "development"], 2, "no project 'none'"),
        (["history", "task-resource-attribute"], 2, "neither a project nor a domain"),
    ],
)
def test_words_that_do_not_go_together(stage: Stage, argv: list[str], code: int, said: str) -> None:
    done = stage.yard(*argv)
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_sample_is_a_file_that_works_once_its_names_are_yours(stage: Stage, file: Path, kind: str) -> None:
    stage.yard("update", kind, "--gen", "-p", "levels", "--attr-file", str(file), check=True)
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text().replace("mypool", "gpu")
    assert stage.yard("get", kind, "--gen", "-p", "levels", check=True).stdout == file.read_text()
    assert stage.yard("update", kind, "--gen", "-p", "levels", "--attr-file", str(file)).returncode == 2  # it is there
    file.write_text(text)
    stage.yard("update", kind, "--attr-file", str(file), "--force", check=True)
    stage.yard("get", kind, "-p", "levels", "--attr-file", str(file), "--force", check=True)
    assert "No change" in stage.yard("update", kind, "--attr-file", str(file), check=True).stderr
    stage.yard("delete", kind, "-p", "levels", "--force", check=True)


def test_every_value_is_explained_with_its_level(stage: Stage, file: Path) -> None:
    for scope, text in (
        (["-d", "development"], "limits: {memory: 4Gi}\n"),
        (["-p", "levels"], "defaults: {cpu: 500m}\n"),
        (["-p", "levels", "-d", "development"], "limits: {gpu: 1}\n"),
        (["-p", "levels", "-d", "development", "train"], "limits: {cpu: 3}\n"),
        (["-p", "levels", "-d", "development", "train", "--launch-plan", "night"], "defaults: {memory: 1Gi}\n"),
    ):
        file.write_text(text)
        stage.yard("update", "task-resource-attribute", *scope, "--attr-file", str(file), "--force", check=True)
    asked = ["explain-policy", "-p", "levels", "-d", "development"]
    shown = [line.split() for line in stage.yard(*asked, check=True).stdout.splitlines()]
    assert shown[0][:4] == ["KIND", "FIELD", "VALUE", "LEVEL"]
    here = {line[1]: line[2:4] for line in shown if line[0] == "task-resource-attribute"}
    assert here == {
        "limits.memory": ["4Gi", "domain"],
        "defaults.cpu": ["500m", "project"],
        "limits.gpu": ["1", "project+domain"],
        "limits.cpu": ["8", "platform"],
    }
    found = stage.read(*asked, "--workflow", "train", "--launch-plan", "night")
    fields = {
        each["field"]: (each["value"], each["level"])
        for kind in found["attributes"]
        if kind["kind"] == "task-resource-attribute"
        for each in kind["fields"]
    }
    assert fields["limits.cpu"] == ("3", "workflow")
    assert fields["defaults.memory"] == ("1Gi", "launch-plan")
    assert fields["limits.gpu"] == ("1", "project+domain")


def test_a_row_has_a_history(stage: Stage, file: Path) -> None:
    scope = ["-p", "flytesnacks", "-d", "production"]
    for text in ("value: x\n", "value: mycluster\n"):
        file.write_text(text)
        stage.yard("update", "execution-cluster-label", *scope, "--attr-file", str(file), "--force", check=True)
    stage.yard("delete", "execution-cluster-label", *scope, "--force", check=True)
    changes = stage.read("history", "execution-cluster-label", *scope)
    assert [(each["before"], each["after"]) for each in changes] == [
        ({"value": "mycluster"}, None),
        ({"value": "x"}, {"value": "mycluster"}),
        (None, {"value": "x"}),
    ]
    shown = stage.yard("history", "execution-cluster-label", *scope, check=True).stdout
    assert "-value: x\n+value: mycluster\n" in shown
    assert (
        stage.yard("history", "execution-cluster-label", *scope, "--limit", "1", check=True).stdout.count("local") == 1
    )
    assert "never set" in stage.yard("history", "plugin-override", *scope, check=True).stderr


def test_kinds_and_scopes_are_completed(stage: Stage) -> None:
    kinds = stage.yard("__complete", "2", "get", "task", check=True).stdout
    assert kinds == "task-resource-attribute\ttask resources\n"
    assert "production" in stage.yard("__complete", "4", "get", "0", "-d", "", check=True).stdout
    assert "levels\n" in stage.yard("__complete", "4", "get", "0", "-p", "", check=True).stdout


def test_projects_are_made_changed_archived_and_taken_up_again(stage: Stage, file: Path) -> None:
    stage.yard("project", "create", "old", "--description", "a first one", check=True)
    stage.yard("project", "update", "old", "--description", "an old one", "-l", "team=red", check=True)
    (found,) = [each for each in stage.read("project", "ls") if each["name"] == "old"]
    assert (found["description"], found["labels"]) == ("an old one", {"team": "red"})
    stage.yard("project", "archive", "old", "--force", check=True)
    assert "old" not in stage.yard("project", "ls", "-o", "name", check=True).stdout.split()
    assert "old" in stage.yard("project", "ls", "--archived", "-o", "name", check=True).stdout.split()
    file.write_text("project: old\nlimits: {cpu: 1}\n")
    refused = stage.yard("update", "task-resource-attribute", "--attr-file", str(file), "--force")
    assert refused.returncode == 2
    assert "yard project update old --activate" in refused.stderr
    stage.yard("project", "update", "old", "--activate", check=True)
    stage.yard("update", "task-resource-attribute", "--attr-file", str(file), "--force", check=True)
    stage.yard("delete", "task-resource-attribute", "-p", "old", "--force", check=True)
    assert stage.yard("project", "archive", "none", "--force").returncode == 3
