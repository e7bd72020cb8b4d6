"""Namespaces of real Kubernetes clusters: the quota of a project is set once, and both clusters have it in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.kubernetes.namespace_quota import CRA, NAMESPACE, PROJECT, TEMPLATES, hard_of
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, start_agent

pytestmark = [pytest.mark.kubernetes, pytest.mark.acceptance, pytest.mark.xdist_group("kubernetes")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "templates").mkdir()
    for name, text in TEMPLATES.items():
        (folder / "templates" / name).write_text(text)
    values = {"projectQuotaCpu": {"value": 4}, "projectQuotaMemory": {"value": "8Gi"}}
    section = {"templatePath": "templates", "templateData": values, "refreshInterval": "1s"}
    (folder / "yard.yaml").write_text(json.dumps({"cluster_resources": section}))
    with staged(folder, extra=["--config", str(folder / "yard.yaml")]) as made:
        made.yard("project", "create", PROJECT, check=True)
        yield made


def site_of(stage: Stage, cluster: KubernetesCluster) -> list[str]:
    section = {"kubeconfig": str(cluster.kubeconfig), "timeout_s": 5, "cluster_resources": {"check_s": 1}}
    return stage.site(cluster.name, json.dumps({"kubernetes": section}))


@pytest.fixture(scope="module")
def agents(stage: Stage, two_kubernetes: KubernetesBed) -> Iterator[dict[str, Agent]]:
    made = {
        cluster.name: start_agent(
            stage.folder,
            stage.url,
            cluster.name,
            graph=None,
            backend="kubernetes",
            extra=site_of(stage, cluster),
        )
        for cluster in (two_kubernetes["alpha"], two_kubernetes["beta"])
    }
    yield made
    for agent in made.values():
        agent.close()


def states(stage: Stage, cluster: str) -> dict[str, Any]:
    rows = stage.read("cluster-resources", "status", "-p", PROJECT, "-d", "development", "--cluster", cluster)
    return {row["object"]: row for row in rows}


def set_quota(stage: Stage, folder: Path, text: str = CRA) -> None:
    (folder / "cra.yaml").write_text(text)
    stage.yard("update", "cluster-resource-attribute", "--attrFile", str(folder / "cra.yaml"), "--force", check=True)


@pytest.mark.usefixtures("agents")
def test_the_quota_of_a_project_reaches_two_clusters_and_a_job_beyond_it_waits(
    stage: Stage, two_kubernetes: KubernetesBed, tmp_path: Path
) -> None:
    clusters = [two_kubernetes["alpha"], two_kubernetes["beta"]]
    for cluster in clusters:
        until(lambda c=cluster: hard_of(c).get("limits.cpu") == "4", PATIENCE_S, f"the first quota on {cluster.name}")
    set_quota(stage, tmp_path)
    for cluster in clusters:
        until(
            lambda c=cluster: hard_of(c) == {"limits.cpu": "1k", "limits.memory": "5Ti"},
            SOON_S,
            f"the new quota on {cluster.name}",
        )
        until(
            lambda c=cluster: {row["state"] for row in states(stage, c.name).values()} == {"applied"},
            SOON_S,
            f"{cluster.name} has reported",
        )
    set_quota(stage, tmp_path, CRA.replace("1000", "1"))
    until(lambda: hard_of(clusters[0]).get("limits.cpu") == "1", SOON_S, "the small quota")
    spec = {"image": "localhost/busybox:1", "resources": {"cores": 2, "memory": "64MiB"}}
    job = stage.submit("true", spec=spec, project=PROJECT, domain="development", cluster="alpha")
    until(
        lambda: "exceeded quota: project-quota" in str(stage.job(job).get("reason")),
        PATIENCE_S,
        "the job says that it waits for the quota",
    )
    set_quota(stage, tmp_path)
    assert stage.ended(job, timeout_s=2 * PATIENCE_S)["state"] == "SUCCEEDED"


def test_drift_is_put_back_also_after_the_agent_was_killed(
    stage: Stage, two_kubernetes: KubernetesBed, agents: dict[str, Agent]
) -> None:
    alpha = two_kubernetes["alpha"]
    until(lambda: hard_of(alpha), PATIENCE_S, "the quota")
    wanted = hard_of(alpha)
    agents["alpha"].kill()
    patch = json.dumps({"spec": {"hard": {"limits.cpu": "77"}}})
    alpha.kubectl("patch", "-n", NAMESPACE, "resourcequota", "project-quota", "--field-manager=mallory", "-p", patch)
    agents["alpha"].start()
    until(lambda: hard_of(alpha) == wanted, PATIENCE_S, "the quota is back")
    until(
        lambda: states(stage, "alpha")["ResourceQuota/project-quota"].get("drift", "").endswith("changed by mallory"),
        SOON_S,
        "the drift is shown",
    )


@pytest.mark.usefixtures("agents")
def test_a_cluster_that_is_away_holds_up_no_other(stage: Stage, two_kubernetes: KubernetesBed, tmp_path: Path) -> None:
    alpha, beta = two_kubernetes["alpha"], two_kubernetes["beta"]
    until(lambda: hard_of(alpha) and hard_of(beta), PATIENCE_S, "the quotas")
    beta.pause("apiserver")
    try:
        set_quota(stage, tmp_path, CRA.replace("1000", "21"))
        until(lambda: hard_of(alpha).get("limits.cpu") == "21", SOON_S, "the quota on alpha")
        until(
            lambda: "failed" in {row["state"] for row in states(stage, "beta").values()},
            PATIENCE_S,
            "beta's failure is shown",
        )
    finally:
        beta.resume("apiserver")
    until(lambda: hard_of(beta).get("limits.cpu") == "21", 2 * PATIENCE_S, "the quota on beta")
