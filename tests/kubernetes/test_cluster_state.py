"""Graph, load and quotes on a real cluster: kubectl's numbers, pods of others, lost nodes, missing rights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.agent.backends import Setting
from switchyard.agent.site.site import Rates
from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.doctor.doctor_kubernetes import check_kubernetes
from switchyard.features.kubernetes.agent.jobs.quotes import pods_of_manifest
from switchyard.features.kubernetes.agent.kubernetes_site import (
    KubernetesSite,
    Toleration,
    TolerationOperator,
    kubernetes_of,
)
from switchyard.features.kubernetes.agent.namespaces.site_access import open_api
from switchyard.features.kubernetes.agent.nodes.cluster import KubernetesCluster
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import JobSpec, Resources
from tests import kube_cluster
from tests.kube_bed import KubernetesBed
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S, until
from tests.sites import site_with

pytestmark = pytest.mark.kubernetes
SEEN_S = 2 * PATIENCE_S
ENDED = ("Succeeded", "Failed")


@pytest.fixture
def alpha(kubernetes: KubernetesBed) -> kube_cluster.KubernetesCluster:
    return kubernetes["alpha"]


class Opener:
    """Opens clusters as an agent with this site file does, and closes them at the end."""

    def __init__(self, alpha: kube_cluster.KubernetesCluster, folder: Path, namespace: str) -> None:
        self._alpha, self._folder, self._namespace = alpha, folder, namespace
        self._stack = ExitStack()

    def __call__(self, *, graph: Graph | None = None, **site: Any) -> KubernetesCluster:
        values = {"namespace": self._namespace, "image": BUSYBOX_IMAGE, **site}
        if "endpoint" not in values:
            values["kubeconfig"] = str(self._alpha.kubeconfig)
        setting = Setting(
            cluster="alpha",
            directory=self._folder,
            graph=graph,
            site=site_with(kubernetes=KubernetesSite(**values), rates={"*": Rates(core=2.0)}),
        )
        api = open_api(kubernetes_of(setting.site), os.environ)
        self._stack.callback(api.close)
        cluster = KubernetesCluster(setting, api)
        self._stack.callback(cluster.close)
        return cluster

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def opener(alpha: kube_cluster.KubernetesCluster, namespace: str, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(alpha, tmp_path, namespace)
    yield opener
    opener.close()


def nodes_of(alpha: kube_cluster.KubernetesCluster) -> dict[str, dict[str, Any]]:
    return {node["metadata"]["name"]: node for node in alpha.get("/api/v1/nodes")["items"]}


def kib(text: str) -> int:
    return int(text.removesuffix("Ki")) * 1024 if text.endswith("Ki") else int(text)


def millicores(text: str) -> int:
    return int(text.removesuffix("m")) if text.endswith("m") else int(text) * 1000


def free_cores_by_api(alpha: kube_cluster.KubernetesCluster, *nodes: str) -> int:
    """Whole free cores of these nodes, by all pods of all namespaces."""
    free = {name: millicores(nodes_of(alpha)[name]["status"]["allocatable"]["cpu"]) for name in nodes}
    for pod in alpha.get("/api/v1/pods")["items"]:
        node = pod["spec"].get("nodeName")
        if node in free and pod["status"]["phase"] not in ENDED:
            for container in pod["spec"]["containers"]:
                free[node] -= millicores(container["resources"].get("requests", {}).get("cpu", "0"))
    return sum(left // 1000 for left in free.values())


def a_pod(name: str, node: str | None, **requests: str) -> dict[str, Any]:
    """A pod that waits, with these requests."""
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "command": ["sleep", "600"],
        "resources": {"requests": requests, "limits": {"memory": "32Mi"}},
    }
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"metadata": {"name": name}, "spec": {**spec, **({"nodeName": node} if node else {})}}


def job(*, cores: int | float | str = 1, gpus: int = 0, tasks: int = 1) -> JobSpec:
    return JobSpec(command=["true"], resources=Resources(cores=cores, gpus=gpus, tasks=tasks))


@contextmanager
def patched(
    alpha: kube_cluster.KubernetesCluster, node: str, body: dict[str, Any], undo: dict[str, Any]
) -> Iterator[None]:
    part = "/status" if "status" in body else ""
    alpha.request("PATCH", f"/api/v1/nodes/{node}{part}", body)
    try:
        yield
    finally:
        alpha.request("PATCH", f"/api/v1/nodes/{node}{part}", undo)


def test_the_graph_has_the_numbers_of_kubectl(alpha: kube_cluster.KubernetesCluster, opener: Opener) -> None:
    graph = opener().graph
    nodes = nodes_of(alpha)
    assert sorted(graph.host_names) == sorted(nodes)
    has = [node["status"]["allocatable"] for node in nodes.values()]
    assert graph.cores == sum(millicores(row["cpu"]) // 1000 for row in has) == 8
    assert graph.gpus == sum(int(row["nvidia.com/gpu"]) for row in has) == 4
    assert graph.memory_bytes == sum(kib(row["memory"]) for row in has)
    assert graph.storage_bytes == sum(kib(row["ephemeral-storage"]) for row in has)
    labels = nodes["alpha-1"]["metadata"]["labels"]
    assert graph.kinds[0].properties["kubernetes.io/os"] == labels["kubernetes.io/os"]
    system = graph.kinds[0].attached[0].metadata
    info = nodes["alpha-1"]["status"]["nodeInfo"]
    assert (system["kernel-release"], system["container-runtime"]) == (info["kernelVersion"], "containerd")


def test_a_pod_of_somebody_else_lowers_what_is_free(
    alpha: kube_cluster.KubernetesCluster, opener: Opener, namespace: str
) -> None:
    cluster = opener()
    until(lambda: cluster.load().free_cores is not None, SEEN_S, "the pods were listed")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    alpha.request("POST", pods, a_pod("other", "alpha-1", cpu="1500m", memory="32Mi"))
    until(lambda: cluster.load().free_cores == free_cores_by_api(alpha, "alpha-1", "alpha-2") <= 6, SEEN_S, "it counts")
    shapes = cluster.load().free
    assert shapes is not None
    assert sum(entry.count for entry in shapes) == 2
    alpha.request("POST", pods, a_pod("waits", None, cpu="64"))
    alpha.request("DELETE", f"{pods}/other?gracePeriodSeconds=0")
    until(lambda: cluster.load().free_cores == free_cores_by_api(alpha, "alpha-1", "alpha-2") > 6, SEEN_S, "it is gone")


def test_a_cordoned_node_has_nothing_free(alpha: kube_cluster.KubernetesCluster, opener: Opener) -> None:
    cluster = opener()
    until(lambda: cluster.load().free_cores is not None, SEEN_S, "the pods were listed")
    with patched(alpha, "alpha-2", {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}):
        until(lambda: cluster.load().values["nodes_closed"] == 1, SEEN_S, "the cordon is seen")
        until(lambda: cluster.load().free_cores == free_cores_by_api(alpha, "alpha-1"), SEEN_S, "nothing is free there")
        assert cluster.graph.nodes == 2
        assert not cluster.look(), "a cordon does not change what the cluster has"
        quote = cluster.quote(job(cores=4, tasks=2))
        assert (quote.can, quote.eta_s) == (True, None)
        assert "1 cordoned" in quote.reason
    until(lambda: cluster.load().values["nodes_closed"] == 0, SEEN_S, "the node is open again")


def test_a_dead_kubelet_is_seen(alpha: kube_cluster.KubernetesCluster, opener: Opener) -> None:
    cluster = opener()
    try:
        alpha.kill("kubelet/alpha-2")
        until(lambda: cluster.load().values["nodes_down"] == 1, SEEN_S, "the node is missed")
        until(lambda: cluster.load().free_cores == free_cores_by_api(alpha, "alpha-1"), SEEN_S, "nothing is free there")
        assert "1 not ready" in cluster.quote(job(cores=4, tasks=2)).reason
    finally:
        alpha.heal()
    until(lambda: cluster.load().values["nodes_down"] == 0, SEEN_S, "the node is back")


def test_an_extended_resource_appears(alpha: kube_cluster.KubernetesCluster, opener: Opener) -> None:
    cluster = opener()
    assert "example.com/fpga" not in cluster.graph.totals
    more = {"status": {"capacity": {"example.com/fpga": "3"}, "allocatable": {"example.com/fpga": "3"}}}
    less = {"status": {"capacity": {"example.com/fpga": None}, "allocatable": {"example.com/fpga": None}}}

    def total() -> int:
        cluster.look()
        return cluster.graph.totals.get("example.com/fpga", 0)

    with patched(alpha, "alpha-1", more, less):
        until(lambda: total() == 3, SEEN_S, "the resource appears")
        assert len(cluster.graph.kinds) == 2
    until(lambda: total() == 0, SEEN_S, "it is gone")


TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


def test_a_taint_that_no_job_tolerates(alpha: kube_cluster.KubernetesCluster, opener: Opener) -> None:
    plain = opener()
    tolerant = opener(tolerations=[Toleration("dedicated", TolerationOperator.EXISTS)])
    with patched(alpha, "alpha-2", {"spec": {"taints": [TAINT]}}, {"spec": {"taints": None}}):
        until(lambda: plain.look() or plain.graph.nodes == 1, SEEN_S, "the taint is seen")
        assert plain.graph.host_names == ["alpha-1"]
        until(lambda: plain.load().values.get("nodes_tainted") == 1, SEEN_S, "it is counted")
        quote = plain.quote(job(cores=4, tasks=2))
        assert not quote.can
        assert "1 with the taint dedicated=ml:NoSchedule that the job does not tolerate" in quote.reason
        until(lambda: tolerant.nodes is not None and any(node.taints for node in tolerant.nodes), SEEN_S, "it sees it")
        tolerant.look()
        assert tolerant.graph.nodes == 2
        pod: dict[str, Any] = {"containers": [], "nodeSelector": {"kubernetes.io/hostname": "alpha-2"}}
        manifest = {"spec": {"template": {"spec": pod}}}
        assert pods_of_manifest(manifest).count == 1
        assert plain.refusal(manifest) == (
            "it fits only nodes with taints that it does not tolerate: dedicated=ml:NoSchedule"
        )
        assert plain.refusal({"spec": {"template": {"spec": {"containers": []}}}}) == ""


def test_quotes(alpha: kube_cluster.KubernetesCluster, opener: Opener, namespace: str) -> None:
    cluster = opener()
    until(lambda: cluster.load().free_cores is not None, SEEN_S, "the pods were listed")
    until(lambda: cluster.quote(job()).eta_s == 0, SEEN_S, "there is room")
    assert cluster.quote(job(cores=2)).cost == 4.0
    assert cluster.quote(job(cores=5)).reason.startswith("0 of 2 nodes could ever run it: 2 with only 4 cpu")
    assert "with only 2 nvidia.com/gpu" in cluster.quote(job(gpus=3)).reason
    hard = {"requests.cpu": "1", "pods": "5"}
    alpha.request(
        "POST", f"/api/v1/namespaces/{namespace}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    )
    until(lambda: not cluster.quote(job(cores=2)).can, SEEN_S, "the quota is seen")
    assert cluster.quote(job(cores=2)).reason == (
        f"the quota q of the namespace {namespace} allows requests.cpu 1; the job needs 2 cpu"
    )
    assert cluster.quote(JobSpec(command=["true"], resources=Resources(nodes=2, tasks=3))).can is False


@pytest.fixture
def account(alpha: kube_cluster.KubernetesCluster, namespace: str, tmp_path: Path) -> dict[str, Any]:
    """A service account that may read quotas of its namespace and nothing else, as a site has it."""
    rule = {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]}
    alpha.kubectl("create", "serviceaccount", "agent", f"--namespace={namespace}")
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [rule]}
    alpha.apply({**role, "metadata": {"name": "agent", "namespace": namespace}})
    alpha.kubectl(
        "create",
        "rolebinding",
        "agent",
        "--role=agent",
        f"--serviceaccount={namespace}:agent",
        f"--namespace={namespace}",
    )
    token = tmp_path / "token"
    token.write_text(alpha.kubectl("create", "token", "agent", f"--namespace={namespace}").strip())
    return {"endpoint": alpha.url, "token_path": str(token), "cert_path": str(alpha.ca_file)}


def test_without_the_right_to_list_nodes(
    alpha: kube_cluster.KubernetesCluster, opener: Opener, namespace: str, account: dict[str, Any]
) -> None:
    with pytest.raises(Unavailable, match=r"cannot find out which nodes this cluster has.*cannot list resource"):
        opener(**account)
    own = compile_graph({"nodes": 3, "each": {"core": 4}}, where="graph")
    given = opener(graph=own, **account)
    assert given.graph == own
    assert "cannot list resource" in str(given.load().values["nodes_unknown"])
    assert given.quote(job()).reason == "this agent may not list nodes, so it does not know what is free"
    hard = {"requests.cpu": "6", "requests.memory": "1Gi", "requests.nvidia.com/gpu": "1"}
    alpha.request(
        "POST", f"/api/v1/namespaces/{namespace}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    )
    cluster = opener(**account)
    assert (cluster.graph.cores, cluster.graph.gpus, cluster.graph.memory_bytes) == (6, 1, 2**30)
    assert cluster.load().free_cores == 6
    assert "cannot list resource" in str(cluster.load().values["pods_unknown"])
    assert not cluster.quote(job(cores=7)).can


def test_rights_that_come_and_go(
    alpha: kube_cluster.KubernetesCluster, opener: Opener, namespace: str, account: dict[str, Any]
) -> None:
    cluster = opener(graph=compile_graph({"nodes": 3, "each": {"core": 4}}, where="graph"), **account)
    assert cluster.nodes is None
    rule = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [rule]}
    alpha.apply({**role, "metadata": {"name": namespace}})
    alpha.kubectl(
        "create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", f"--serviceaccount={namespace}:agent"
    )
    try:

        def is_known() -> bool:
            cluster.look()
            return cluster.load().free_cores is not None and "nodes_unknown" not in cluster.load().values

        until(is_known, SEEN_S, "the rights are there")
        assert cluster.nodes is not None
        assert len(cluster.nodes) == 2
    finally:
        alpha.kubectl("delete", "clusterrolebinding,clusterrole", namespace)

    def is_unknown() -> bool:
        cluster.look()
        return "nodes_unknown" in cluster.load().values

    until(is_unknown, SEEN_S, "the rights are gone")


def test_the_graph_of_the_last_start_serves_while_the_api_is_away(
    alpha: kube_cluster.KubernetesCluster, opener: Opener
) -> None:
    graph = opener().graph
    alpha.kill("apiserver")
    try:
        later = opener()
        assert later.graph == graph
    finally:
        alpha.heal()
    until(lambda: later.load().free_cores is not None, SEEN_S, "the pods were listed")


QUEUE_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "localqueues.kueue.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_a_queue_of_kueue_is_looked_for(alpha: kube_cluster.KubernetesCluster, opener: Opener, namespace: str) -> None:
    cluster = opener(kueue=True, queue="team")
    missing = "Kueue is not installed in this cluster (no API group kueue.x-k8s.io), and the site file asks for it"
    assert cluster.quote(job()).reason == missing
    site = KubernetesSite(kubeconfig=str(alpha.kubeconfig), namespace=namespace, kueue=True, queue="team")
    findings = {finding.check: finding for finding in check_kubernetes(site, os.environ)}
    assert (findings["kubernetes-kueue"].is_ok, findings["kubernetes-kueue"].detail) == (False, missing)
    alpha.apply(QUEUE_CRD)
    try:
        until(lambda: "has no LocalQueue team" in cluster.quote(job()).reason, SEEN_S, "the group is there")
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "team"}}
        path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{namespace}/localqueues"
        until(lambda: alpha.get(path) is not None, SEEN_S, "queues are served")
        alpha.request("POST", path, queue)
        until(lambda: cluster.quote(job()).can, SEEN_S, "the queue is seen")
        assert cluster.quote(job()).reason == "waits in Kueue's queue team"
        assert cluster.quote(job()).eta_s is None
        findings = {finding.check: finding for finding in check_kubernetes(site, os.environ)}
        assert findings["kubernetes-kueue"].is_ok
    finally:
        alpha.kubectl("delete", "crd", "localqueues.kueue.x-k8s.io")


def test_a_site_file_for_this_cluster_is_read(alpha: kube_cluster.KubernetesCluster, tmp_path: Path) -> None:
    from switchyard.agent.site.site import read_site

    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump({"kubernetes": {"kubeconfig": str(alpha.kubeconfig), "namespace": "x"}}))
    assert kubernetes_of(read_site(file)).fixed_namespace == "x"
