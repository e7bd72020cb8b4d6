"""deploy/kubernetes/ on a real cluster: its rights are enough and no more, and the doctor finds what is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.features.kubernetes.agent.api.rights import NAMESPACE_RIGHTS, rule_of
from switchyard.model.job.job import State
from tests.acceptance.kubernetes.kubernetes_deploy import (
    ACCOUNT,
    CLUSTER_FILES,
    DEPLOY,
    HOME,
    DeployedRights,
    doctor_findings,
)
from tests.acceptance.stage import Stage, staged
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.kubernetes.faulty_api import FaultyApi
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import off_clock, start_agent

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes-deploy")]
END_S = 2 * PATIENCE_S
ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def cluster(kubernetes: KubernetesBed) -> KubernetesCluster:
    return kubernetes["alpha"]


@pytest.fixture(scope="module")
def rights(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedRights]:
    made = DeployedRights(cluster, tmp_path_factory.mktemp("rights"))
    yield made
    made.delete(*CLUSTER_FILES, "service-account.yaml", "namespace.yaml")


@pytest.fixture
def namespace(cluster: KubernetesCluster, rights: DeployedRights) -> Iterator[str]:
    """A namespace of jobs, with the agent's Role."""
    name = cluster.create_namespace(f"jobs-{os.urandom(4).hex()}")
    rights.apply("jobs-role.yaml", namespace=name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def told(findings: dict[str, list[dict[str, Any]]], check: str, is_ok: bool | None) -> list[str]:
    """Details and advice of all findings of a check with this outcome."""
    return [f"{one['detail']} {one['advice']}" for one in findings.get(check, ()) if one["is_ok"] is is_ok]


def test_a_job_runs_with_these_rights_and_the_agent_has_no_others(
    cluster: KubernetesCluster, rights: DeployedRights, namespace: str, tmp_path: Path
) -> None:
    site = rights.site_file("run", namespace=namespace, image=BUSYBOX_IMAGE, grace_s=1)
    with (
        staged(tmp_path / "stage") as stage,
        closing(
            start_agent(
                stage.folder, stage.url, "alpha", graph=None, backend="kubernetes", extra=["--config", str(site)]
            )
        ),
    ):
        _run_jobs(stage)
    assert rights.may("create", "jobs", namespace)  # or the answers below would prove nothing
    assert rights.may("get", "pods/log", namespace)
    for resource in ("secrets", "roles", "configmaps", "deployments"):
        assert not rights.may("get", resource, namespace), resource
    for resource in ("pods", "pods/exec", "pods/attach", "pods/eviction"):
        assert not rights.may("create", resource, namespace), resource
    assert not rights.may("create", "jobs", "default")
    assert not rights.may("patch", "nodes", namespace)


def _run_jobs(stage: Stage) -> None:
    """One job, an array, one that fails and one that is cancelled."""
    done = stage.ended(stage.submit("echo", "hi", cluster="alpha"), timeout_s=END_S)
    assert (done["state"], stage.raw("logs", done["id"])[0]) == ("SUCCEEDED", b"hi\n"), done
    failed = stage.ended(stage.submit("sh", "-c", "exit 5", cluster="alpha"), timeout_s=END_S)
    assert (failed["state"], failed["exit_code"]) == ("FAILED", 5), failed
    job = stage.submit("sleep", "600", cluster="alpha")
    stage.until_state(job, State.RUNNING, timeout_s=END_S)
    stage.yard("cancel", job, check=True)
    assert stage.ended(job, timeout_s=END_S)["state"] == "CANCELLED"


def test_the_doctor_finds_nothing_wrong_and_runs_a_small_job(rights: DeployedRights, namespace: str) -> None:
    site = rights.site_file("well", namespace=namespace, image=BUSYBOX_IMAGE)
    findings = doctor_findings(rights.folder, site)
    wrong = [one for check, ones in findings.items() for one in ones if check.startswith("kube") and not one["is_ok"]]
    assert wrong == []
    assert findings.keys() >= {"kubernetes", "kubernetes-clock", "kubernetes-rights", "kubernetes-nodes"}
    assert findings["canary"][0]["is_ok"] is True, findings["canary"]


def test_a_missing_right_is_told_with_the_rule_that_gives_it(
    cluster: KubernetesCluster, rights: DeployedRights, namespace: str
) -> None:
    """Every rule of the Role in turn; then the rule as the doctor says it is added again."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{ACCOUNT}"
    (role,) = [one for one in yaml.safe_load_all((DEPLOY / "jobs-role.yaml").read_text()) if one["kind"] == "Role"]
    site = rights.site_file("rules", namespace=namespace)
    for left_out in NAMESPACE_RIGHTS[:4]:
        rules = [rule for rule in role["rules"] if rule != rule_of(left_out)]
        assert len(rules) == len(role["rules"]) - 1
        cluster.request("PATCH", path, {"rules": rules})
        outcome = False if left_out.is_required else None
        (text,) = told(doctor_findings(rights.folder, site), "kubernetes-rights", outcome)
        assert f"may not {left_out.verbs[0]}" in text
        said = yaml.safe_load(text[text.index("- {") :])
        # Of pods, the rights of the whole cluster remain.
        assert said[0]["resources"] == [left_out.resource]
        assert set(said[0]["verbs"]) <= set(rule_of(left_out)["verbs"])
        cluster.request("PATCH", path, {"rules": [*rules, *said]})
        assert told(doctor_findings(rights.folder, site), "kubernetes-rights", outcome) == []


def test_rights_of_the_whole_cluster_are_asked_for_where_jobs_have_several_namespaces(
    cluster: KubernetesCluster, rights: DeployedRights, namespace: str
) -> None:
    rights.delete(*CLUSTER_FILES)
    try:
        several = doctor_findings(
            rights.folder, rights.site_file("several", namespace="{{ project }}-{{ domain }}"), "--namespace", namespace
        )
        texts = told(several, "kubernetes-rights", False)
        assert [
            word for word in ("nodes", "jobs", "events") if not any(f"watch {word}" in text for text in texts)
        ] == []
        single = doctor_findings(rights.folder, rights.site_file("single", namespace=namespace))
        (text,) = told(single, "kubernetes-rights", False)
        assert "nodes-cluster-role.yaml" in text
    finally:
        rights.apply(*CLUSTER_FILES)


def test_what_the_site_file_names_must_be_there(rights: DeployedRights, namespace: str) -> None:
    classes = [{"name": "no-such-class", "min": 0}, {"name": "system-node-critical", "min": 100}]
    site = rights.site_file("named", namespace=namespace, priority_classes=classes, service_account="nobody")
    findings = doctor_findings(rights.folder, site)
    assert len(told(findings, "kubernetes-priority", True)) == 1
    assert "no PriorityClass no-such-class" in told(findings, "kubernetes-priority", False)[0]
    assert "no ServiceAccount nobody" in told(findings, "kubernetes-account", False)[0]


def test_a_namespace_that_is_missing_full_or_strict(
    cluster: KubernetesCluster, rights: DeployedRights, namespace: str
) -> None:
    absent = doctor_findings(rights.folder, rights.site_file("absent", namespace="no-such-namespace"))
    # Without a Role there, the agent may not even ask for the namespace.
    assert absent["kubernetes-namespace"][0]["is_ok"] is not True
    cluster.kubectl("label", "namespace", namespace, f"{ENFORCE}=restricted")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small", "namespace": namespace}}
    cluster.apply({**quota, "spec": {"hard": {"pods": "0", "requests.cpu": "8"}}})
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/small"
    until(lambda: (cluster.get(path) or {}).get("status", {}).get("used"), PATIENCE_S, "the quota is counted")
    findings = doctor_findings(rights.folder, rights.site_file("baseline", namespace=namespace))
    assert "security: restricted" in told(findings, "kubernetes-admission", False)[0]
    (full,) = told(findings, "kubernetes-quota", False)
    assert "pods 0 of 0" in full
    strict = doctor_findings(rights.folder, rights.site_file("strict", namespace=namespace, security="restricted"))
    assert told(strict, "kubernetes-admission", False) == []


def test_a_namespace_that_is_being_deleted(cluster: KubernetesCluster, rights: DeployedRights) -> None:
    name = cluster.create_namespace(f"going-{os.urandom(4).hex()}")
    path = f"/api/v1/namespaces/{name}"
    holder = {"metadata": {"name": "holder", "finalizers": ["yard.example/hold"]}}
    cluster.request("POST", f"{path}/configmaps", holder)
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    site = rights.site_file("going", namespace=name)
    kubeconfig = {"kubernetes": {"kubeconfig": str(cluster.kubeconfig), "namespace": name}}
    site.write_text(yaml.safe_dump(kubeconfig))  # the agent's Role goes first
    (text,) = told(doctor_findings(rights.folder, site), "kubernetes-namespace", False)
    assert "is being deleted" in text
    cluster.request("PATCH", f"{path}/configmaps/holder", {"metadata": {"finalizers": []}})


def test_a_cluster_that_cannot_be_used(rights: DeployedRights, namespace: str, tmp_path: Path) -> None:
    """Nobody there, another authority, a token that is none: one finding each, and the backend is not tried."""
    bad_token = tmp_path / "bad-token"
    bad_token.write_text("nonsense")
    other = tmp_path / "other.pem"
    other.write_text((rights.cluster.folder / "client.crt").read_text())
    for more, word in (
        ({"endpoint": f"https://127.0.0.1:{free_port()}"}, "refused"),
        ({"cert_path": str(other)}, "certificate"),
        ({"token_path": str(bad_token)}, "401"),
        ({"token_path": str(tmp_path / "none")}, "none"),
    ):
        findings = doctor_findings(rights.folder, rights.site_file("unusable", namespace=namespace, **more))
        (text,) = told(findings, "kubernetes", False)
        assert word in text, text
        assert "backend" not in findings


def test_a_clock_that_is_off_is_seen(rights: DeployedRights, namespace: str) -> None:
    site = rights.site_file("clock", namespace=namespace)
    findings = doctor_findings(rights.folder, site, env=off_clock("+90s"))
    (text,) = told(findings, "kubernetes-clock", False)
    assert "ahead of the API server's" in text


def test_a_clock_that_is_behind_the_certificate_is_told_as_such(rights: DeployedRights, namespace: str) -> None:
    """The cluster is younger than a week, so by this clock its certificate is not valid yet."""
    site = rights.site_file("behind", namespace=namespace)
    findings = doctor_findings(rights.folder, site, env=off_clock("-7d"))
    (text,) = told(findings, "kubernetes-clock", False)
    seconds = re.search(r"this clock is (\d+) s behind the API server's", text)
    assert seconds is not None, text
    assert int(seconds[1]) == pytest.approx(7 * 86400, abs=60)
    assert "by this clock the server's certificate is not valid yet" in text
    assert told(findings, "kubernetes", False) == []


def test_a_clock_that_is_behind_is_seen_although_the_certificate_is_valid(
    rights: DeployedRights, namespace: str, tmp_path: Path
) -> None:
    """Over plain HTTP on this machine: the cluster is too young for a certificate that was valid an hour ago."""
    with closing(FaultyApi(rights.cluster, tmp_path)) as api:
        api.token.write_text(rights.token_file.read_text())
        more = {name: value for name, value in api.section.items() if value is not None}
        site = rights.site_file("slow-clock", namespace=namespace, **more)
        findings = doctor_findings(rights.folder, site, env=off_clock("-1h"))
    (text,) = told(findings, "kubernetes-clock", False)
    assert "s behind the API server's" in text
    assert "a new certificate of the API server is not valid yet. Tokens go by the API server's clock" in text


def test_the_deployment_is_accepted_as_it_stands(cluster: KubernetesCluster, rights: DeployedRights) -> None:
    """Its namespace refuses pods that are not restricted, so a pod proves that the agent's is."""
    rights.apply("agent.yaml", "network-policy.yaml")
    try:
        path = f"/api/v1/namespaces/{HOME}/pods?labelSelector=app.kubernetes.io/name={ACCOUNT}"
        until(lambda: (cluster.get(path) or {}).get("items"), END_S, "the Deployment has a pod")
    finally:
        rights.delete("agent.yaml", "network-policy.yaml")
    rights.apply("cluster-resources-cluster-role.yaml")
    rights.delete("cluster-resources-cluster-role.yaml")
