"""The agent inside its cluster, by deploy/kubernetes/agent.yaml: with its service account, without root, restarted."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.kubernetes.kubernetes_agent_image import AGENT_IMAGE, save_agent_image
from tests.acceptance.kubernetes.kubernetes_deploy import ACCOUNT, CLUSTER_FILES, DEPLOY, HOME, DeployedRights
from tests.acceptance.stage import Stage, staged
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.kube_services import service_address
from tests.processes import PATIENCE_S, free_port, until
from tests.programs import YARD, Program, isolated_env
from tests.services import Postgres
from tests.slurm_daemon import answers

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes-deploy"), pytest.mark.timeout(900)]

END_S = 2 * PATIENCE_S
YARD_PORT = 8443  # of the server, for pods
JOBS_NAMESPACE = "physics-development"
PODS = f"/api/v1/namespaces/{HOME}/pods?labelSelector=app.kubernetes.io/name={ACCOUNT}"


@dataclass(frozen=True)
class AgentInPod:
    """A server on this machine, and its agent in a pod of the cluster."""

    stage: Stage
    cluster: KubernetesCluster

    def pod(self) -> dict[str, Any]:
        """The agent's pod; empty while there is none, or the old one is still there."""
        pods = (self.cluster.get(PODS) or {"items": []})["items"]
        return dict(pods[0]) if len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"] else {}

    def until_up(self) -> str:
        """Wait until the agent's pod runs and the cluster is up. The pod's uid."""

        def uid() -> str:
            pod = self.pod()
            states = pod.get("status", {}).get("containerStatuses", [])
            is_ready = bool(states) and states[0]["ready"] and self.stage.health("alpha") == "up"
            return str(pod["metadata"]["uid"]) if is_ready else ""

        try:
            return until(uid, END_S, "the agent in the pod is up")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{json.dumps(self.pod().get('status'))}\n{self.log()}") from None

    def log(self) -> str:
        return self.cluster.kubectl("--namespace", HOME, "logs", f"deployment/{ACCOUNT}", check=False)

    def submit(self, script: str) -> str:
        words = ["--cluster", "alpha", "--project", "physics", "--domain", "development", "--image", BUSYBOX_IMAGE]
        done = self.stage.yard("submit", "-o", "name", *words, "--", "sh", "-c", script, check=True)
        return str(done.stdout.strip())

    def release(self, job: str) -> None:
        """Let a job end that waits for its file."""
        words = ["--namespace", JOBS_NAMESPACE]
        pods = self.cluster.kubectl(*words, "get", "pods", "-o", "name").split()
        (pod,) = (name for name in pods if job.lower() in name)
        # What it answers may be lost, since the container ends at once.
        self.cluster.kubectl(*words, "exec", pod, "--", "touch", "/tmp/go", check=False)


def manifest(server_url: str, join_token: str, ca_file: Path) -> str:
    """agent.yaml, with the places changed that say CHANGE, for a server whose certificate is of an own authority."""
    text = (DEPLOY / "agent.yaml").read_text(encoding="utf-8")
    data, certificate = (
        "            - --data=/data/agent\n",
        textwrap.indent(ca_file.read_text(encoding="utf-8"), "    "),
    )
    changes = {
        'YARD_JOIN_TOKEN: ""': f"YARD_JOIN_TOKEN: {join_token}",
        "registry.example/switchyard:1": AGENT_IMAGE,
        "https://yard.example": server_url,
        "  site.yaml: |\n": f"  ca.pem: |\n{certificate}  site.yaml: |\n",
        data: f"{data}            - --ca-file=/etc/switchyard/ca.pem\n",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def tls_server(stage: Stage, cluster: KubernetesCluster, database: str) -> Iterator[int]:
    """A second server on the database, with a certificate that holds for the address of a Service. Its port."""
    port = free_port()
    words = ["--data", str(stage.folder / "tls-data"), "--http", f"127.0.0.1:{port}", "--database", database]
    words += ["--tls-cert", str(cluster.folder / "server.crt"), "--tls-key", str(cluster.folder / "server.key")]
    with Program([*YARD, "server", *words], stage.folder, name="tls", env=isolated_env(stage.folder)) as server:
        server.wait_for(lambda: answers(("127.0.0.1", port)), PATIENCE_S, "the server with TLS takes connections")
        yield port


@contextlib.contextmanager
def volume(cluster: KubernetesCluster, folder: Path) -> Iterator[None]:
    """The volume that the agent's claim asks for. A `local` one: Kubernetes gives it to the pod's group."""
    folder.mkdir()
    nodes = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.spec.node_names[0]]}
    spec = {
        "capacity": {"storage": "5Gi"},
        "accessModes": ["ReadWriteOncePod"],
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}},
    }
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": ACCOUNT}, "spec": spec})
    try:
        yield
    finally:
        cluster.kubectl("delete", "persistentvolume", ACCOUNT)


@pytest.fixture
def agent(kubernetes: KubernetesBed, postgres: Postgres, tmp_path: Path) -> Iterator[AgentInPod]:
    cluster = kubernetes["alpha"]
    cluster.load_image(save_agent_image(tmp_path))
    rights = DeployedRights(cluster, tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(rights.delete, *CLUSTER_FILES, "service-account.yaml", "namespace.yaml")
        stack.enter_context(volume(cluster, tmp_path / "volume"))
        cluster.create_namespace(JOBS_NAMESPACE)
        stack.callback(cluster.kubectl, "delete", "namespace", JOBS_NAMESPACE)
        rights.apply("jobs-role.yaml", namespace=JOBS_NAMESPACE)
        database = postgres.create_database()
        stage = stack.enter_context(staged(tmp_path / "stage", auth=True, extra=["--database", database]))
        port = stack.enter_context(tls_server(stage, cluster, database))
        address = stack.enter_context(service_address(cluster, {YARD_PORT: port}))
        stage.yard("project", "create", "physics", check=True)
        text = manifest(f"https://{address}:{YARD_PORT}", stage.invite("alpha", namespaces=["*"]), cluster.ca_file)
        stack.callback(rights.delete, "agent.yaml")
        cluster.kubectl("apply", "-f", "-", text=text)
        yield AgentInPod(stage, cluster)


def test_the_agent_runs_jobs_from_inside_the_cluster_and_finds_them_again_in_a_new_pod(
    agent: AgentInPod, tmp_path: Path
) -> None:
    first = agent.until_up()
    assert "joined cluster alpha as agent alpha-agent" in agent.log()
    done = agent.stage.ended(agent.submit("echo hi; exit 3"), timeout_s=END_S)
    assert (done["state"], done["exit_code"]) == (State.FAILED, 3), done
    assert agent.stage.raw("logs", done["id"])[0] == b"hi\n"
    assert len(json.loads(agent.stage.yard("cluster", "show", "alpha", "-o", "json").stdout)["totals"]) > 0
    # The join token is needed once.
    agent.cluster.kubectl("--namespace", HOME, "delete", "secret", ACCOUNT)
    running = agent.submit("echo begun; while ! test -e /tmp/go; do sleep 0.1; done; echo ended")
    agent.stage.until_state(running, State.RUNNING, timeout_s=END_S)
    agent.cluster.kubectl("--namespace", HOME, "delete", "pods", "--selector", f"app.kubernetes.io/name={ACCOUNT}")
    assert agent.until_up() != first
    assert agent.stage.job(running)["state"] == State.RUNNING
    agent.release(running)
    done = agent.stage.ended(running, timeout_s=END_S)
    assert (done["state"], agent.stage.raw("logs", running)[0]) == (State.SUCCEEDED, b"begun\nended\n"), done
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (tmp_path / "volume" / "agent").iterdir()}
    assert owners == {(65532, 65532)}, "the agent in the pod is not root"
