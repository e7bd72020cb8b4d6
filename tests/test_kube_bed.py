"""The Kubernetes clusters of the tests do what tests rely on: they are real, faults are real, nothing outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kube_bed import PREFIX, KubernetesBed, kubernetes_running, remove_abandoned
from tests.kube_cluster import KubernetesCluster
from tests.kube_conf import KubernetesSpec
from tests.kube_image import BUSYBOX_IMAGE, PYTHON_IMAGE, save_python_image
from tests.kube_node import node_cgroups
from tests.processes import PATIENCE_S, Process, started_of, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]
END_S = 2 * PATIENCE_S


@pytest.fixture
def namespace(kubernetes: KubernetesBed, request: pytest.FixtureRequest) -> str:
    return kubernetes["alpha"].create_namespace(f"bed-{os.urandom(4).hex()}")


def a_job(name: str, script: str, *, image: str = BUSYBOX_IMAGE, **container: Any) -> dict[str, Any]:
    """A Job that runs a script in one pod, without retries."""
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": image, "command": ["sh", "-c", script], **container}],
    }
    spec = {"backoffLimit": 0, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def create(cluster: KubernetesCluster, namespace: str, job: dict[str, Any]) -> None:
    cluster.request("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", job)


def pod_of(cluster: KubernetesCluster, namespace: str, job: str) -> dict[str, Any]:
    """The Job's pod, or an empty one."""
    pods = cluster.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name={job}")
    return pods["items"][0] if pods and pods["items"] else {"status": {}}


def phase_of(cluster: KubernetesCluster, namespace: str, job: str) -> str:
    return pod_of(cluster, namespace, job)["status"].get("phase", "")


def is_over(cluster: KubernetesCluster, namespace: str, job: str) -> bool:
    found = cluster.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")
    rows = found["status"].get("conditions", []) if found else []
    return any(row["type"] in ("Complete", "Failed") and row["status"] == "True" for row in rows)


def end(cluster: KubernetesCluster, namespace: str, job: dict[str, Any]) -> tuple[int, str]:
    """Run a Job to its end. Returns the exit code and the output."""
    name = job["metadata"]["name"]
    create(cluster, namespace, job)
    until(lambda: is_over(cluster, namespace, name), END_S, f"the Job {name} ends")
    state = pod_of(cluster, namespace, name)["status"]["containerStatuses"][0]["state"]["terminated"]
    return state["exitCode"], cluster.kubectl("logs", f"job/{name}", f"--namespace={namespace}")


def is_ready(cluster: KubernetesCluster, node: str) -> str:
    conditions = cluster.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
    return next(row["status"] for row in conditions if row["type"] == "Ready")


def test_a_job_runs_and_its_exit_code_and_log_come_back(kubernetes: KubernetesBed, namespace: str) -> None:
    alpha = kubernetes["alpha"]
    assert end(alpha, namespace, a_job("hello", "echo hello from $(hostname | cut -c-5); exit 7")) == (
        7,
        "hello from hello\n",
    )
    version = alpha.get("/version")["gitVersion"]
    assert f" k8s.io/kubernetes {version}\n" in (Path(__file__).parent / "kube" / "go.mod").read_text().replace(
        "\t", " "
    )


def test_the_nodes_are_as_the_spec_says(kubernetes: KubernetesBed) -> None:
    nodes = kubernetes["alpha"].get("/api/v1/nodes")["items"]
    seen = {node["metadata"]["name"]: node["status"]["allocatable"] for node in nodes}
    assert list(seen) == ["alpha-1", "alpha-2"]
    for allocatable in seen.values():
        assert (allocatable["cpu"], allocatable["nvidia.com/gpu"]) == ("4", "2")
        assert int(allocatable["memory"].removesuffix("Ki")) <= 4096 * 1024


def test_a_pod_sees_its_gpus_and_is_held_to_its_memory(kubernetes: KubernetesBed, namespace: str) -> None:
    alpha = kubernetes["alpha"]
    two: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    code, text = end(alpha, namespace, a_job("gpus", "echo $NVIDIA_VISIBLE_DEVICES", **two))
    assert (code, sorted(text.strip().split(","))) == (0, ["0", "1"])
    small: dict[str, Any] = {"resources": {"limits": {"memory": "16Mi"}}}
    code, _ = end(alpha, namespace, a_job("greedy", "tail /dev/zero", **small))
    assert code == 137


def test_an_image_with_python_is_loaded(kubernetes: KubernetesBed, namespace: str, tmp_path: Path) -> None:
    alpha = kubernetes["alpha"]
    (tmp_path / "hello.py").write_text("import json, ssl; print(json.dumps([1]))")
    archive = save_python_image(tmp_path / "python.tar", tmp_path / "hello.py")
    alpha.load_image(archive, nodes=["alpha-1"])
    job = a_job("python", f"python3 {tmp_path}/hello.py", image=PYTHON_IMAGE)
    job["spec"]["template"]["spec"]["nodeName"] = "alpha-1"
    assert end(alpha, namespace, job) == (0, "[1]\n")


def test_a_paused_api_server_answers_nothing_until_it_is_resumed(kubernetes: KubernetesBed) -> None:
    alpha = kubernetes["alpha"]
    alpha.pause("apiserver")
    try:
        assert alpha.get("/readyz") is None
    finally:
        alpha.resume("apiserver")
    until(lambda: alpha.is_ready("apiserver"), END_S, "the API server answers again")


@pytest.mark.parametrize("daemon", ["etcd", "apiserver", "controller-manager", "scheduler"])
def test_a_killed_daemon_of_the_control_plane_is_away_and_comes_back(
    kubernetes: KubernetesBed, namespace: str, daemon: str
) -> None:
    alpha = kubernetes["alpha"]
    alpha.kill(daemon)
    try:
        assert not alpha.is_ready(daemon)
    finally:
        alpha.start(daemon)
    assert end(alpha, namespace, a_job("after", "echo after")) == (0, "after\n")


def test_a_stopped_daemon_ends_in_order_and_comes_back(kubernetes: KubernetesBed) -> None:
    alpha = kubernetes["alpha"]
    alpha.stop("scheduler")
    assert not alpha.is_ready("scheduler")
    alpha.start("scheduler")


@pytest.mark.parametrize("daemon", ["kubelet/alpha-1", "containerd/alpha-1"])
def test_a_container_outlives_the_daemons_of_its_node(kubernetes: KubernetesBed, namespace: str, daemon: str) -> None:
    alpha = kubernetes["alpha"]
    job = a_job("outlives", "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo outlived; exit 3")
    # It tolerates all: a daemon that starts slowly must not have the pod evicted.
    job["spec"]["template"]["spec"] |= {"nodeName": "alpha-1", "tolerations": [{"operator": "Exists"}]}
    create(alpha, namespace, job)
    until(lambda: phase_of(alpha, namespace, "outlives") == "Running", END_S, "the pod runs")
    pod = pod_of(alpha, namespace, "outlives")["metadata"]["name"]
    alpha.kill(daemon)
    alpha.start(daemon)

    def ended() -> bool:
        # What it answers may be lost, since the container ends at once.
        alpha.kubectl("exec", f"--namespace={namespace}", pod, "--", "touch", "/tmp/go", check=False)
        return is_over(alpha, namespace, "outlives")

    until(ended, END_S, "the Job ends")
    state = pod_of(alpha, namespace, "outlives")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == 3
    assert alpha.kubectl("logs", pod, f"--namespace={namespace}") == "outlived\n"


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_node_that_is_away_is_seen_and_comes_back(kubernetes: KubernetesBed, namespace: str, fault: str) -> None:
    alpha = kubernetes["alpha"]
    try:
        getattr(alpha, fault)("node/alpha-2")
        until(lambda: is_ready(alpha, "alpha-2") == "Unknown", END_S, "the node is missed")
        assert is_ready(alpha, "alpha-1") == "True"
    finally:
        alpha.heal()
    job = a_job("again", "echo again")
    job["spec"]["template"]["spec"]["nodeName"] = "alpha-2"
    assert end(alpha, namespace, job) == (0, "again\n")


def test_two_clusters_run_at_once_and_know_nothing_of_each_other(two_kubernetes: KubernetesBed) -> None:
    began = time.monotonic()
    name = f"pair-{os.urandom(4).hex()}"
    for cluster in (two_kubernetes["alpha"], two_kubernetes["beta"]):
        cluster.create_namespace(name)
        assert end(cluster, name, a_job("pair", f"echo {cluster.name}")) == (0, f"{cluster.name}\n")
    assert two_kubernetes["beta"].get("/api/v1/nodes/alpha-1") is None
    assert time.monotonic() - began < END_S


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("os.getuid", 1000, "as root"),
        ("tests.kube_bed.kubernetes_lacking", ["etcd-server"], "not installed: etcd-server"),
        ("tests.kube_bed.cgroup_lacking", "no memory", "a kubelet cannot run here: no memory"),
    ],
)
def test_what_is_missing_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, answer: object, reason: str
) -> None:
    monkeypatch.setattr(name, lambda: answer)
    with pytest.raises(AssertionError, match=reason):
        KubernetesBed(tmp_path / "bed").start(KubernetesSpec("never"))
    assert not (tmp_path / "bed").exists()


def routes_to(subnet: str) -> list[str]:
    """The network interfaces of this machine through which it reaches the pods of a node."""
    first = subnet.split(".")[:3]
    prefix = "".join(f"{int(part):02X}" for part in reversed(first))  # the file has the bytes in reverse order
    rows = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    return [row[0] for row in rows if row[1][2:] == prefix]


def left_of(folder: Path) -> list[str]:
    """Processes and mounts that have to do with a folder."""
    mark = os.fsencode(folder)
    rows = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "cmdline").read_bytes() or mark in (place / "environ").read_bytes():
                rows.append((place / "cmdline").read_text())
        except OSError:
            continue
    return rows


def test_nothing_is_left_of_a_cluster() -> None:
    with kubernetes_running(KubernetesSpec("gone")) as bed:
        gone = bed["gone"]
        gone.create_namespace("work")
        create(gone, "work", a_job("runs", "trap '' TERM; while true; do sleep 1; done"))
        until(lambda: phase_of(gone, "work", "runs") == "Running", END_S, "the pod runs")
        interfaces = routes_to(gone.conf.subnet("gone-1"))
        groups = node_cgroups(gone.conf.cgroup("gone-1"))
        held = [process for daemon in bed.daemons.values() for process in (daemon.process, daemon.holder) if process]
        assert interfaces
        assert groups
        assert left_of(bed.folder)
        for name in gone.daemon_names():
            gone.pause(name)  # not even then
    assert [process for process in held if process.is_alive] == []
    assert [group for group in groups if group.exists()] == []
    assert left_of(bed.folder) == []
    until(lambda: not any(Path("/sys/class/net", name).exists() for name in interfaces), END_S, "the interfaces go")
    assert not bed.folder.exists()


def test_what_a_killed_test_run_leaves_is_removed_by_the_next() -> None:
    code = """
import time
from tests.kube_bed import kubernetes_running
from tests.kube_conf import KubernetesSpec
with kubernetes_running(KubernetesSpec("left")) as bed:
    processes = [process for daemon in bed.daemons.values() for process in (daemon.process, daemon.holder) if process]
    print(bed.folder, *(process.pid for process in processes), flush=True)
    time.sleep(600)  # until the test ends it
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, *pids = run.stdout.readline().split()
        started = {int(pid): started_of(int(pid)) for pid in pids}
        groups = node_cgroups(f"{Path(folder).name}-left-1")
        run.send_signal(signal.SIGKILL)
    left = [Process(pid, at) for pid, at in started.items() if at]
    assert len(left) == len(pids)
    until(lambda: not any(process.is_alive for process in left), END_S, "the kernel ends the daemons")
    assert groups
    until(lambda: Path(folder) in remove_abandoned() or not Path(folder).exists(), END_S, "the folder is removed")
    assert [group for group in groups if group.exists()] == []
    assert left_of(Path(folder)) == []
    assert Path(folder).name.startswith(PREFIX)
