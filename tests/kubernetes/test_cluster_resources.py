"""Objects of namespaces on a real cluster: applied in order, kept as they should be, removed; and every bad day."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from switchyard.features.kubernetes.agent.api.connection import AccessSettings
from switchyard.features.kubernetes.agent.namespaces.cluster_resources import ClusterResources
from switchyard.features.kubernetes.model.namespace_objects import ObjectState, ObjectStatus
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.applier import (
    Applier,
    Manifest,
    Renderer,
    a_lease,
    a_quota,
    a_status,
    an_object,
    quota_of,
)

pytestmark = pytest.mark.kubernetes

APPLIED, DIFFERS, FAILED = ObjectState.APPLIED, ObjectState.DIFFERS, ObjectState.FAILED
WAITING, LEFT = ObjectState.WAITING, ObjectState.LEFT


@pytest.fixture
def cluster(kubernetes: KubernetesBed) -> KubernetesCluster:
    return kubernetes["alpha"]


@pytest.fixture
def renderer() -> Renderer:
    return Renderer()


@pytest.fixture
def name(cluster: KubernetesCluster) -> Iterator[str]:
    """A namespace of the test's own, gone afterwards."""
    made = f"apply-{secrets.token_hex(4)}"
    yield made
    cluster.kubectl("delete", "namespace", made, "--wait=false", "--ignore-not-found")


def test_objects_are_applied_in_order_and_on_change(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer)
    account = an_object("ServiceAccount", "jobs", metadata={"name": "jobs", "annotations": {"role": "a"}})
    renderer.namespaces[name] = [a_quota(), account, an_object("Namespace", name)]  # in no good order
    applier.resources.note_version(renderer.version)
    assert "waits for its namespace" in applier.resources.hold(a_lease(name))
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    assert applier.resources.hold(a_lease(name)) == ""
    assert quota_of(cluster, name) == "1k"
    assert [status.name for status in renderer.reports[name].objects] == [
        f"Namespace/{name}",
        "ServiceAccount/jobs",
        "ResourceQuota/quota",
    ]
    managed = cluster.get(f"/api/v1/namespaces/{name}/resourcequotas/quota")["metadata"]["managedFields"]
    assert ("switchyard", "Apply") in {(entry["manager"], entry["operation"]) for entry in managed}
    renderer.namespaces[name][0] = a_quota("7")
    applier.until(lambda: quota_of(cluster, name) == "7", "the new quota")
    assert applier.status(name, "ResourceQuota/quota") == ObjectStatus("ResourceQuota/quota", APPLIED)  # no drift


def test_nothing_is_written_while_nothing_changes_and_a_new_agent_sees_no_drift(
    cluster: KubernetesCluster, renderer: Renderer, name: str
) -> None:
    applier = Applier(cluster, renderer)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    path = f"/api/v1/namespaces/{name}/resourcequotas/quota"
    # Its status is filled in by a controller, which is no change of ours.
    applier.until(lambda: cluster.get(path)["status"].get("hard"), "the quota has a status")
    version = cluster.get(path)["metadata"]["resourceVersion"]
    again = ClusterResources(applier.api, applier.site, cluster=applier.resources._owner)
    again.attach_client(renderer, lambda: None)
    applier.resources = again  # the agent was killed and started again
    renderer.reports.clear()
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    for _ in range(3):
        applier.resources._check_at = 0.0
        applier.round()
    assert cluster.get(path)["metadata"]["resourceVersion"] == version
    assert applier.status(name, "ResourceQuota/quota") == ObjectStatus("ResourceQuota/quota", APPLIED)


def test_drift_is_put_back_and_reported(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    patch = '{"spec": {"hard": {"limits.cpu": "1"}}}'
    cluster.kubectl("patch", "-n", name, "resourcequota", "quota", "--field-manager=mallory", "-p", patch)
    applier.until(lambda: quota_of(cluster, name) == "1k", "the quota is back")
    status = applier.until(lambda: (applier.status(name, "ResourceQuota/quota") or a_status()).drift, "drift")
    assert status == "put back: spec.hard.limits.cpu, changed by mallory"
    cluster.kubectl("delete", "-n", name, "resourcequota", "quota")
    applier.until(lambda: quota_of(cluster, name) == "1k", "the quota is back")
    applier.until(
        lambda: (applier.status(name, "ResourceQuota/quota") or a_status()).drift == "put back: it was deleted", "drift"
    )


def test_what_others_add_stays(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    cluster.kubectl("label", "-n", name, "resourcequota", "quota", "team=a")
    for _ in range(2):
        applier.resources._check_at = 0.0
        applier.round()
    found = cluster.get(f"/api/v1/namespaces/{name}/resourcequotas/quota")
    assert found["metadata"]["labels"]["team"] == "a"
    assert applier.status(name, "ResourceQuota/quota") == ObjectStatus("ResourceQuota/quota", APPLIED)


def test_what_is_no_longer_rendered_is_removed(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer)
    default = {**an_object("ServiceAccount", "default"), "imagePullSecrets": [{"name": "registry"}]}
    account = an_object("ServiceAccount", "shared")
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota(), account, default]
    applier.until_state(name, "ServiceAccount/default", APPLIED)
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    cluster.kubectl("label", "-n", name, "serviceaccount", "shared", "team=a")
    renderer.namespaces[name] = [an_object("Namespace", name)]
    applier.until(lambda: quota_of(cluster, name) is None, "the quota is gone")
    applier.until(lambda: len(renderer.reports[name].objects) == 1, "its states are gone")
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    # Those that others have a part in are let go of, and not deleted.
    applier.until(lambda: "imagePullSecrets" not in cluster.get(f"{accounts}/default"), "our fields are gone")
    assert cluster.get(f"{accounts}/shared")["metadata"]["labels"] == {"team": "a"}
    del renderer.namespaces[name]
    renderer.namespaces["other"] = []  # the index is not empty
    applier.until_state(name, f"Namespace/{name}", LEFT, "never deleted")
    assert cluster.get(f"/api/v1/namespaces/{name}")


def test_a_site_may_keep_what_is_no_longer_rendered(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer, prune=False)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    renderer.namespaces[name] = [an_object("Namespace", name)]
    applier.until_state(name, "ResourceQuota/quota", LEFT, "the site does not delete")
    assert quota_of(cluster, name) == "1k"


@pytest.mark.parametrize("take_over", [False, True])
def test_a_field_of_another_manager(cluster: KubernetesCluster, renderer: Renderer, name: str, take_over: bool) -> None:
    cluster.create_namespace(name)
    theirs = {**a_quota("2"), "metadata": {"name": "quota", "namespace": name}}
    text = json.dumps(theirs)
    cluster.kubectl("apply", "--server-side", "--field-manager=others", "-f", "-", text=text)
    applier = Applier(cluster, renderer, take_over=take_over)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    if take_over:
        applier.until_state(name, "ResourceQuota/quota", APPLIED)
        assert quota_of(cluster, name) == "1k"
    else:
        status = applier.until_state(name, "ResourceQuota/quota", DIFFERS)
        assert 'conflict with "others"' in status.reason
        assert "take_over" in status.reason
        assert quota_of(cluster, name) == "2"
        assert applier.resources.hold(a_lease(name)) == ""  # the namespace is there: jobs may start
        cluster.kubectl("delete", "-n", name, "resourcequota", "quota")
        applier.until_state(name, "ResourceQuota/quota", APPLIED)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (an_object("Secret", "s"), "add Secret to kubernetes.cluster_resources.kinds (t.yaml)"),
        (an_object("Widget", "w", "example.com/v1"), "add Widget.example.com to"),
        (an_object("Gadget", "g", "example.com/v1"), "the cluster has no kind Gadget in example.com/v1"),
        (an_object("ClusterRole", "c", "rbac.authorization.k8s.io/v1"), "only objects of a namespace"),
        (
            {**a_quota(), "metadata": {"name": "other", "namespace": "kube-system"}},
            "it names the namespace 'kube-system'",
        ),
        (an_object("Namespace", "kube-system"), "it names the namespace 'kube-system'"),
        (an_object("LimitRange", "typo", spec={"limitz": []}), ".spec.limitz: field not declared in schema"),
        (an_object("ServiceAccount", "typo", automount=False), ".automount: field not declared in schema"),
        (an_object("LimitRange", "Bad_Name"), "Invalid value"),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)
def test_one_bad_object_is_told_and_the_others_are_applied(
    cluster: KubernetesCluster, renderer: Renderer, name: str, manifest: Manifest, said: str
) -> None:
    kinds = ["Namespace", "ServiceAccount", "ResourceQuota", "LimitRange", "ClusterRole", "Gadget.example.com"]
    applier = Applier(cluster, renderer, kinds=kinds)
    renderer.namespaces[name] = [an_object("Namespace", name), manifest, a_quota()]
    bad = f"{manifest['kind']}/{manifest['metadata']['name']}"
    applier.until_state(name, bad, FAILED, said)
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    assert quota_of(cluster, name) == "1k"
    assert bad in applier.resources.hold(a_lease(name))


def test_a_site_with_other_namespaces_is_left_alone(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer, namespaces=["team-*"])
    renderer.namespaces[name] = [an_object("Namespace", name)]
    applier.round()
    applier.round()
    assert cluster.get(f"/api/v1/namespaces/{name}") is None
    assert applier.resources.hold(a_lease(name)) == ""


def test_a_namespace_that_is_being_deleted_is_made_again(
    cluster: KubernetesCluster, renderer: Renderer, name: str
) -> None:
    applier = Applier(cluster, renderer)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    kept = {"apiVersion": "v1", "kind": "ConfigMap"}
    cluster.apply({**kept, "metadata": {"name": "kept", "namespace": name, "finalizers": ["example.com/x"]}})
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    applier.until_state(name, f"Namespace/{name}", FAILED, "being deleted")
    applier.until_state(name, "ResourceQuota/quota", WAITING, "being deleted")
    cluster.kubectl("patch", "-n", name, "configmap", "kept", "-p", '{"metadata": {"finalizers": null}}')
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    assert quota_of(cluster, name) == "1k"


@contextmanager
def limited_user(cluster: KubernetesCluster, folder: Path, *resources: str) -> Iterator[tuple[str, AccessSettings]]:
    """A service account that may manage these resources of the core group, and no others."""
    user = f"limited-{secrets.token_hex(4)}"
    cluster.kubectl("create", "serviceaccount", "-n", "default", user)
    allow(cluster, user, *resources)
    cluster.kubectl("create", "clusterrolebinding", user, f"--clusterrole={user}", f"--serviceaccount=default:{user}")
    token = cluster.kubectl("create", "token", "-n", "default", user).strip()
    (folder / "token").write_text(token)
    try:
        settings = AccessSettings(
            endpoint=cluster.url, token_path=str(folder / "token"), cert_path=str(cluster.ca_file)
        )
        yield user, settings
    finally:
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", user)
        cluster.kubectl("delete", "serviceaccount", "-n", "default", user)


def allow(cluster: KubernetesCluster, user: str, *resources: str) -> None:
    rule = {"apiGroups": [""], "resources": list(resources), "verbs": ["get", "list", "create", "patch", "delete"]}
    metadata = {"name": user}
    cluster.apply(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}
    )


def test_a_missing_right_is_told_with_the_rule_to_add(
    cluster: KubernetesCluster, renderer: Renderer, name: str, tmp_path: Path
) -> None:
    applier = Applier(cluster, renderer)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    with limited_user(cluster, tmp_path, "namespaces") as (user, settings):
        applier.open(settings)
        status = applier.until_state(name, "ResourceQuota/quota", FAILED)
        assert 'resources: ["resourcequotas"], verbs: [get, list, create, patch, delete]' in status.reason
        applier.until_state(name, f"Namespace/{name}", APPLIED)
        allow(cluster, user, "namespaces", "resourcequotas")
        applier.until_state(name, "ResourceQuota/quota", APPLIED)


def test_a_cluster_that_does_not_answer_is_told_and_tried_again(
    cluster: KubernetesCluster, renderer: Renderer, name: str
) -> None:
    applier = Applier(cluster, renderer)
    applier.open(AccessSettings(kubeconfig=str(cluster.kubeconfig)), timeout_s=1.0)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota("3")]
    cluster.pause("apiserver")
    try:
        applier.until(
            lambda: any(status.state is FAILED for status in renderer.reports[name].objects), "the failure is told"
        )
    finally:
        cluster.resume("apiserver")
    failed = next(status for status in renderer.reports[name].objects if status.state is FAILED)
    assert "no answer in time" in failed.reason
    applier.until(lambda: quota_of(cluster, name) == "3", "the new quota")
    applier.until_state(name, "ResourceQuota/quota", APPLIED)


def test_a_server_that_is_away_does_not_stop_the_repair_of_drift(
    cluster: KubernetesCluster, renderer: Renderer, name: str
) -> None:
    applier = Applier(cluster, renderer)
    renderer.namespaces[name] = [an_object("Namespace", name), a_quota()]
    applier.until_state(name, "ResourceQuota/quota", APPLIED)
    renderer.is_away = True
    cluster.kubectl("delete", "-n", name, "resourcequota", "quota")
    applier.until(lambda: quota_of(cluster, name) == "1k", "the quota is back")
    renderer.is_away = False
    applier.until(lambda: (applier.status(name, "ResourceQuota/quota") or a_status()).drift, "the drift is reported")


def test_one_object_of_the_cluster_for_two_namespaces(
    cluster: KubernetesCluster, renderer: Renderer, name: str
) -> None:
    applier = Applier(cluster, renderer, kinds=["Namespace", "ClusterRole"], cluster_scope=True)
    role = an_object("ClusterRole", f"role-{name}", "rbac.authorization.k8s.io/v1", rules=[])
    other = f"{name}-b"
    renderer.namespaces = {
        name: [an_object("Namespace", name), role],
        other: [an_object("Namespace", other), role],
    }
    try:
        applier.until_state(name, f"ClusterRole/role-{name}", APPLIED)
        applier.until_state(other, f"ClusterRole/role-{name}", FAILED, "which belongs to no namespace")
        renderer.namespaces[name] = [an_object("Namespace", name)]
        applier.until_state(other, f"ClusterRole/role-{name}", APPLIED)
    finally:
        cluster.kubectl("delete", "clusterrole", f"role-{name}", "--ignore-not-found")
        cluster.kubectl("delete", "namespace", other, "--wait=false", "--ignore-not-found")


def test_a_rendering_that_never_worked_is_told_to_jobs(
    cluster: KubernetesCluster, renderer: Renderer, name: str
) -> None:
    applier = Applier(cluster, renderer, wait_s=0.2)
    renderer.namespaces[name] = []
    renderer.mistakes[name] = "ab.yaml: line 3: {{ x }} has no value"
    applier.round()
    assert "{{ x }} has no value" in applier.resources.hold(a_lease(name))
    applier.until(lambda: applier.resources.hold(a_lease(name)) == "", "the wait is bounded")


def test_namespaces_that_jobs_wait_for_come_first(cluster: KubernetesCluster, renderer: Renderer, name: str) -> None:
    applier = Applier(cluster, renderer)
    names = [f"{name}-{letter}" for letter in "abz"]
    renderer.namespaces = {each: [an_object("Namespace", each)] for each in names}
    applier.resources.note_version(renderer.version)
    assert applier.resources.hold(a_lease(names[-1]))
    applier.resources._read_index(renderer)
    assert [state.namespace for state in applier.resources._due_states()] == [names[-1], *names[:-1]]
