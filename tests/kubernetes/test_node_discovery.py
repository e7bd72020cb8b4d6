"""The systems of nodes on a real cluster: by their kubelets, and by a short Job on each node that leaves nothing."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import yaml

import switchyard
from switchyard.features.doctor.agent.discover import main as discover_command
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.site_access import open_api
from switchyard.features.kubernetes.agent.nodes.node_systems import DiscoveryJob, describe_node_systems
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE, PYTHON_IMAGE, save_python_image
from tests.processes import PATIENCE_S, until

pytestmark = pytest.mark.kubernetes
GONE_S = 2 * PATIENCE_S


@pytest.fixture
def alpha(kubernetes: KubernetesBed) -> KubernetesCluster:
    return kubernetes["alpha"]


def is_clean(alpha: KubernetesCluster, namespace: str) -> bool:
    jobs = alpha.get(f"/apis/batch/v1/namespaces/{namespace}/jobs")
    pods = alpha.get(f"/api/v1/namespaces/{namespace}/pods")
    return bool(jobs and pods) and not jobs["items"] and not pods["items"]


def discover(
    alpha: KubernetesCluster, discovery: DiscoveryJob | None
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    with closing(open_api(KubernetesSite(kubeconfig=str(alpha.kubeconfig)), os.environ)) as api:
        subsystem, silent = describe_node_systems(api, discovery)
    return {node: vertices[0] for node, vertices in subsystem["attach"].items()}, silent


def test_kubelets_tell_most(alpha: KubernetesCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(yaml.safe_dump({"kubernetes": {"kubeconfig": str(alpha.kubeconfig)}}))
    words = ["--per-node", "--backend", "kubernetes", "--config", str(site), "-o", "json"]
    assert discover_command(words) == 0
    attached = json.loads(capsys.readouterr().out)["attach"]
    info = alpha.get("/api/v1/nodes/alpha-1")["status"]["nodeInfo"]
    assert sorted(attached) == ["alpha-1", "alpha-2"]
    assert attached["alpha-1"][0]["kernel-release"] == info["kernelVersion"]
    assert attached["alpha-1"][0]["container-runtime"] == "containerd"


def test_a_job_on_each_node_tells_the_rest(alpha: KubernetesCluster, namespace: str, tmp_path: Path) -> None:
    packages = Path(msgspec.__file__).parent
    source = Path(switchyard.__file__).parent
    alpha.load_image(save_python_image(tmp_path / "python.tar", packages, source, Path(yaml.__file__).parent))
    places = f"{packages.parent}:{source.parent}"
    function = "from switchyard.features.doctor.agent.discover import main as discover_command"
    program = f"import sys; {function}; sys.exit(discover_command(sys.argv[1:]))"
    command = ("env", f"PYTHONPATH={places}", "python3", "-c", program, "--per-node", "-o", "json")
    discovery = DiscoveryJob(namespace, PYTHON_IMAGE, user=0, answer_s=GONE_S, command=command)
    alpha.request("PATCH", "/api/v1/nodes/alpha-2", {"spec": {"unschedulable": True}})  # asked all the same
    try:
        facts, silent = discover(alpha, discovery)
    finally:
        alpha.request("PATCH", "/api/v1/nodes/alpha-2", {"spec": {"unschedulable": None}})
    assert silent == {}
    assert sorted(facts) == ["alpha-1", "alpha-2"]
    assert facts["alpha-2"]["kernel"] == facts["alpha-1"]["kernel"]
    assert "libc" not in facts["alpha-1"], "the C library is the image's"
    until(lambda: is_clean(alpha, namespace), GONE_S, "nothing is left of the Jobs")


@pytest.mark.parametrize(
    ("image", "command", "answer_s", "reason"),
    [
        (BUSYBOX_IMAGE, ("sh", "-c", "echo no; exit 3"), GONE_S, "the pod failed: no"),
        (BUSYBOX_IMAGE, ("sh", "-c", "echo hello"), GONE_S, "its answer cannot be read"),
        (BUSYBOX_IMAGE, ("yard",), GONE_S, "the pod failed: "),
        (BUSYBOX_IMAGE, ("sleep", "600"), 5.0, "no answer within 5 s: the pod "),
        ("localhost/missing:1", ("yard",), 5.0, "no answer within 5 s: the pod "),
    ],
)
def test_a_job_that_does_not_answer(
    alpha: KubernetesCluster, namespace: str, image: str, command: tuple[str, ...], answer_s: float, reason: str
) -> None:
    facts, silent = discover(alpha, DiscoveryJob(namespace, image, answer_s=answer_s, command=command))
    assert sorted(silent) == ["alpha-1", "alpha-2"]
    assert silent["alpha-1"].startswith(reason)
    assert facts["alpha-1"]["architecture"], "what the kubelet says is still known"
    until(lambda: is_clean(alpha, namespace), GONE_S, "nothing is left of the Jobs")


def test_a_namespace_that_refuses_the_job(alpha: KubernetesCluster) -> None:
    facts, silent = discover(alpha, DiscoveryJob("no-such-namespace", BUSYBOX_IMAGE, answer_s=10.0))
    assert "no-such-namespace" in silent["alpha-1"]
    assert sorted(facts) == ["alpha-1", "alpha-2"]
