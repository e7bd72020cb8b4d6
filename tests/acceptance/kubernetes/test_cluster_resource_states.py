"""Objects of namespaces over HTTP and the CLI: an agent of Kubernetes learns of a change, reads it and reports."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import until
from tests.programs import Answer

NAMESPACE = "flyteexamples-development"
CRA = "domain: development\nproject: flyteexamples\nattributes: {projectQuotaCpu: '1000'}\n"
TEMPLATES = {
    "aa.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: '{{ namespace }}'}\n",
    "ab.yaml": "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: quota}\n"
    "spec: {hard: {limits.cpu: '{{ projectQuotaCpu }}'}}\n",
    "ac.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: registry}\nstringData: {password: '{{ password }}'}\n",
}


class KubernetesAgent(ScriptedAgent):
    """Speaks for a Kubernetes cluster."""

    def __init__(self, stage: Stage, cluster: str, **rest: Any) -> None:
        super().__init__(stage, cluster, backend="kubernetes", **rest)

    def ask(self, path: str = "", method: str = "GET", body: Any = None) -> Answer:
        return self._stage.call(method, f"/v1/agents/cluster-resources{path}", body, token=self._credential)

    def index(self) -> dict[str, Any]:
        answer = self.ask()
        assert answer.status == 200, answer.body
        return {entry["namespace"]: entry for entry in answer.json["namespaces"]}

    def quota(self) -> str:
        answer = self.ask(f"/objects?namespace={NAMESPACE}")
        assert answer.status == 200, answer.body
        objects = {each["object"]["kind"]: each["object"] for each in answer.json["objects"]}
        return str(objects["ResourceQuota"]["spec"]["hard"]["limits.cpu"])

    def version(self, other_than: str | None = None) -> str:
        """What polls say, once it is another version. Each poll is parked as a real agent's."""
        until_s = time.monotonic() + SOON_S
        while True:
            said = str(self.heard(wait_s=8).get("cluster_resources", ""))
            if said and said != other_than:
                return said
            assert time.monotonic() < until_s, f"still {said!r}"

    def report(self, *objects: dict[str, Any], digest: str = "") -> Answer:  # type: ignore[override]
        namespaces = [{"namespace": NAMESPACE, "digest": digest, "objects": list(objects)}]
        return self.ask("/status", "POST", {"namespaces": namespaces})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "templates").mkdir()
    for name, text in TEMPLATES.items():
        (folder / "templates" / name).write_text(text)
    config = {
        "cluster_resources": {
            "templatePath": "templates",
            "templateData": {"projectQuotaCpu": {"value": "4"}, "password": {"valueFrom": {"env": "PASSWORD"}}},
            "refreshInterval": "1s",
        }
    }
    (folder / "yard.yaml").write_text(json.dumps(config))
    with staged(folder, extra=["--config", str(folder / "yard.yaml")], env={"PASSWORD": "hunter2"}) as made:
        made.yard("project", "create", "flyteexamples", check=True)
        yield made


@pytest.fixture(scope="module")
def agent(stage: Stage) -> KubernetesAgent:
    made = KubernetesAgent(stage, "alpha")
    until(lambda: NAMESPACE in made.index(), SOON_S, "the namespaces are rendered")
    return made


def set_quota(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "cra.yaml").write_text(CRA)
    stage.yard("update", "cluster-resource-attribute", "--attrFile", str(tmp_path / "cra.yaml"), "--force", check=True)


def test_an_agent_learns_of_a_change_by_its_poll_and_reads_it(
    stage: Stage, agent: KubernetesAgent, tmp_path: Path
) -> None:
    before = agent.version()
    assert agent.quota() == "4"
    set_quota(stage, tmp_path)
    after = agent.version(other_than=before)
    assert agent.quota() == "1000"
    assert agent.ask().json["version"] == after
    stage.yard(
        "delete", "cluster-resource-attribute", "-p", "flyteexamples", "-d", "development", "--force", check=True
    )
    assert agent.version(other_than=after) == before  # by content: the same objects have the same version


def test_status_shows_what_each_cluster_made_of_it(stage: Stage, agent: KubernetesAgent) -> None:
    KubernetesAgent(stage, "beta")
    shown = ["cluster-resources", "status", "-p", "flyteexamples", "-d", "development"]
    digest = agent.index()[NAMESPACE]["digest"]
    quota = {"name": "ResourceQuota/quota", "state": "applied", "drift": "put back: spec", "drift_ago_s": 60}
    failed = {"name": "Secret/registry", "state": "failed", "reason": "the site does not allow this kind"}
    assert agent.report(quota, failed, digest=digest).status == 200
    rows = stage.read(*shown)
    assert [(row["cluster"], row["object"], row["state"]) for row in rows] == [
        ("alpha", "ResourceQuota/quota", "applied"),
        ("alpha", "Secret/registry", "failed"),
        ("beta", "templates", "waiting"),
    ]
    query, walked = "project=flyteexamples&domain=development&limit=1", list[Any]()
    page = stage.get(f"/v1/cluster-resources/status?{query}")
    while page.get("next"):  # objects of one namespace on one cluster stay together, also beyond the limit
        walked += page["items"]
        page = stage.get(f"/v1/cluster-resources/status?{query}&cursor={page['next']}")
    names = [(row["cluster"], row["object"]) for row in [*walked, *page["items"]]]
    assert names == [(row["cluster"], row["object"]) for row in rows]
    table = stage.yard(*shown, check=True).stdout
    assert "CLUSTER" in table
    assert "put back: spec, 1m" in table
    assert "the site does not allow this kind" in table
    problems = stage.read(*shown, "--problems", "--cluster", "alpha")
    assert [row["object"] for row in problems] == ["Secret/registry"]


def test_contents_of_secrets_go_to_agents_alone(stage: Stage, agent: KubernetesAgent) -> None:
    assert b"hunter2" in agent.ask(f"/objects?namespace={NAMESPACE}").body
    scope = ["-p", "flyteexamples", "-d", "development"]
    rendered = stage.yard("cluster-resources", "render", *scope, check=True)
    changes = stage.yard("cluster-resources", "diff", *scope, "-o", "json", check=True)
    states = stage.yard("cluster-resources", "status", "-o", "json", check=True)
    assert "password: hidden" in rendered.stdout
    assert "hunter2" not in rendered.stdout + changes.stdout + states.stdout
    assert b"hunter2" not in agent.ask().body


def test_other_agents_and_users_get_nothing(stage: Stage, agent: KubernetesAgent) -> None:
    local = ScriptedAgent(stage, "plain", name="plain")
    for path in ("", f"/objects?namespace={NAMESPACE}"):
        denied = stage.call("GET", f"/v1/agents/cluster-resources{path}", token=local._credential)
        assert (denied.status, denied.json["code"]) == (403, "denied")
        nobody = stage.call("GET", f"/v1/agents/cluster-resources{path}", token="agent_x")
        assert nobody.status == 401
    assert "cluster_resources" not in local.heard(wait_s=0.01)


@pytest.mark.parametrize(
    ("namespaces", "status"),
    [
        ([{"namespace": "A b"}], 400),
        ([{"namespace": "a", "digest": "xyz"}], 400),
        ([{"namespace": "a", "objects": [{"name": "x", "state": "fine"}]}], 400),
        ([{"namespace": "a", "objects": [{"name": "x", "state": "failed", "reason": "r" * 501}]}], 400),
        ([{"namespace": "a", "objects": [{"name": "x", "state": "applied"}] * 401}], 400),
        ([{"namespace": f"n{number}"} for number in range(101)], 400),
        ([{"namespace": "a", "more": 1}], 400),
        ([], 200),
        ([{"namespace": "nobody-asked", "objects": [{"name": "x", "state": "applied"}]}], 200),
    ],
)
def test_reports_are_bounded(agent: KubernetesAgent, namespaces: list[Any], status: int) -> None:
    answer = agent.ask("/status", "POST", {"namespaces": namespaces})
    assert answer.status == status, answer.body


def test_a_bad_template_is_shown_and_changes_nothing(stage: Stage, agent: KubernetesAgent) -> None:
    bad = stage.folder / "templates" / "zz.yaml"
    digest = agent.index()[NAMESPACE]["digest"]
    bad.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: kube-system}\n")
    shown = ["cluster-resources", "status", "-p", "flyteexamples", "-d", "development", "--cluster", "alpha"]
    until(lambda: any(row["object"] == "templates" for row in stage.read(*shown)), SOON_S, "the mistake is shown")
    (row,) = [row for row in stage.read(*shown) if row["object"] == "templates"]
    assert row["state"] == "failed"
    assert "zz.yaml: ConfigMap/a: the namespace is 'kube-system', not 'flyteexamples-development'" in row["reason"]
    assert agent.index()[NAMESPACE]["digest"] == digest
    bad.unlink()
    until(lambda: not agent.index()[NAMESPACE].get("mistake"), SOON_S, "the mistake is gone")
