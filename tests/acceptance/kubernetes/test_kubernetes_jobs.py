"""A real Kubernetes cluster from the command line: a container runs, and its output and exit code come back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, start_agent

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes-jobs")]
END_S = 2 * PATIENCE_S
# Few: tests/chaos/test_kubernetes_soak.py kills both for ten minutes.
AGENT_KILLS, API_KILLS = 4, 2


@dataclass
class KubernetesYard:
    """A server with an agent of one real cluster. Pods see the folder under its own path."""

    stage: Stage
    cluster: KubernetesCluster
    agent: Agent
    namespace: str

    @property
    def folder(self) -> Path:
        return self.stage.folder

    def submit(self, *words: str) -> str:
        """A job by the command line; its id."""
        done = self.stage.yard("submit", "-o", "name", "--image", BUSYBOX_IMAGE, *words)
        assert done.returncode == 0, done
        return str(done.stdout.strip())

    def run(self, script: str, *words: str) -> str:
        return self.submit(*words, "--", "sh", "-c", script)

    def ended(self, job: str) -> dict[str, Any]:
        return self.stage.ended(job, timeout_s=END_S)

    def jobs(self) -> list[dict[str, Any]]:
        found = self.cluster.request("GET", f"/apis/batch/v1/namespaces/{self.namespace}/jobs")
        return list(found["items"])


@pytest.fixture(scope="module")
def yard(kubernetes: KubernetesBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesYard]:
    cluster, folder = kubernetes["alpha"], tmp_path_factory.mktemp("kubernetes")
    namespace = cluster.create_namespace(f"jobs-{os.urandom(4).hex()}")
    volume, mount = {"name": "shared", "hostPath": {"path": str(folder)}}, {"name": "shared", "mountPath": str(folder)}
    template = {"spec": {"volumes": [volume], "containers": [{"name": "main", "volumeMounts": [mount]}]}}
    section = {"kubeconfig": str(cluster.kubeconfig), "namespace": namespace, "grace_s": 1, "template": template}
    with staged(folder) as stage:
        site = folder / "site.yaml"
        site.write_text(json.dumps({"kubernetes": section}))
        agent = start_agent(folder, stage.url, "alpha", graph=None, backend="kubernetes", extra=["--config", str(site)])
        try:
            yield KubernetesYard(stage, cluster, agent, namespace)
        finally:
            agent.close()
            cluster.heal()


def test_hello(yard: KubernetesYard) -> None:
    job = yard.submit("--", "echo", "hi")
    assert yard.ended(job)["state"] == State.SUCCEEDED
    assert yard.stage.raw("logs", job)[0] == b"hi\n"


def test_the_exit_code_comes_back(yard: KubernetesYard) -> None:
    ended = yard.ended(yard.run("echo oops; exit 7"))
    assert (ended["state"], ended["exit_code"]) == (State.FAILED, 7)


def test_the_cluster_shows_its_nodes(yard: KubernetesYard) -> None:
    shown = json.loads(yard.stage.yard("cluster", "show", "alpha", "-o", "json").stdout)
    assert (shown["backend"], shown["health"]) == ("kubernetes", "up")
    assert {"node": 2, "core": 8, "gpu": 4}.items() <= shown["totals"].items()


def test_an_ephemeral_agent_joins_by_a_group_token(yard: KubernetesYard) -> None:
    stage, cluster = yard.stage, yard.cluster
    token = stage.read("cluster", "invite-group", "burst", "--agents", "1", "--ephemeral", "--namespaces", "*")["token"]
    namespace = cluster.create_namespace(f"burst-{os.urandom(4).hex()}")
    section = {"kubeconfig": str(cluster.kubeconfig), "namespace": namespace, "grace_s": 1}
    site = yard.folder / "burst-site.yaml"
    site.write_text(json.dumps({"kubernetes": section}))
    extra = ["--config", str(site), "--ephemeral", "--ends-after", "10m"]
    env = {"YARD_JOIN_TOKEN": token}
    with start_agent(
        yard.folder, stage.url, "burst-0", graph=None, backend="kubernetes", extra=extra, env=env
    ) as agent:
        assert stage.get("/v1/clusters/burst-0")["groups"] == ["burst"]
        fits, too_long = (
            stage.submit("true", cluster="burst-0", spec={"image": BUSYBOX_IMAGE, "resources": {"time_limit": limit}})
            for limit in ("1m", "1h")
        )
        assert yard.ended(fits)["state"] == State.SUCCEEDED
        assert "does not fit before the end" in yard.ended(too_long)["reason"]
        assert agent.terminate() == 0
        names = [found["name"] for found in stage.get("/v1/clusters")["items"]]
        assert names == ["alpha"], "the cluster has left with its agent"


def test_the_tasks_of_an_array_have_an_exit_code_each(yard: KubernetesYard) -> None:
    job = yard.run("echo task $SWITCHYARD_ARRAY_INDEX; exit $SWITCHYARD_ARRAY_INDEX", "--array", "0-2")
    assert yard.ended(job)["state"] == State.FAILED
    tasks = yard.stage.get(f"/v1/jobs/{job}/tasks")["items"]
    assert sorted(task["exit_code"] for task in tasks) == [0, 1, 2]


def hold_pod(yard: KubernetesYard, job: str, finalizer: str) -> str:
    """Keep the pod of a job from going. Returns its path."""
    pods = f"/api/v1/namespaces/{yard.namespace}/pods"
    (pod,) = yard.cluster.request("GET", f"{pods}?labelSelector=switchyard/job={job}")["items"]
    path = f"{pods}/{pod['metadata']['name']}"
    yard.cluster.request("PATCH", path, {"metadata": {"finalizers": [*pod["metadata"]["finalizers"], finalizer]}})
    return path


def test_a_cancelled_job_is_gone_from_the_cluster(yard: KubernetesYard) -> None:
    job = yard.run("sleep 600")
    yard.stage.until_state(job, State.RUNNING, timeout_s=END_S)
    pod = hold_pod(yard, job, "example.com/holder")
    assert yard.stage.yard("cancel", job).returncode == 0
    words = "at its cluster: it is being deleted, held by example.com/holder"
    until(lambda: words in yard.stage.yard("show", job).stdout, END_S, "the user sees why the cancel takes long")
    yard.cluster.request("PATCH", pod, {"metadata": {"finalizers": None}})
    ended = yard.ended(job)
    assert (ended["state"], "at its cluster" in ended["reason"]) == (State.CANCELLED, False)
    assert job.lower() not in json.dumps([row["metadata"]["name"] for row in yard.jobs()])


def test_an_agent_that_is_killed_again_and_again_runs_each_command_once(yard: KubernetesYard) -> None:
    """Kills fall on every step: leases, creates, ends and reports are on the way all the time."""
    ledger = yard.folder / "ledger"
    jobs: list[str] = []
    for number in range(AGENT_KILLS):
        jobs += [yard.run(f"echo {number}-{part} >> {ledger}; sleep {part}; echo out {part}") for part in range(3)]
        yard.agent.kill()
        yard.agent.start()
    ends = [yard.ended(job) for job in jobs]
    assert {end["state"] for end in ends} == {State.SUCCEEDED}
    assert sorted(ledger.read_text().split()) == sorted(f"{n}-{p}" for n in range(AGENT_KILLS) for p in range(3))
    assert {yard.stage.raw("logs", job)[0] for job in jobs} == {b"out 0\n", b"out 1\n", b"out 2\n"}


def test_the_api_server_is_killed_again_and_again_while_jobs_run(yard: KubernetesYard) -> None:
    ledger = yard.folder / "ledger-api"
    jobs: list[str] = []
    for number in range(API_KILLS):
        jobs += [yard.run(f"echo {number}-{part} >> {ledger}; sleep {part}; echo out {part}") for part in range(3)]
        yard.cluster.kill("apiserver")
        yard.cluster.start("apiserver")
    ends = [yard.ended(job) for job in jobs]
    assert {end["state"] for end in ends} == {State.SUCCEEDED}
    assert sorted(ledger.read_text().split()) == sorted(f"{n}-{p}" for n in range(API_KILLS) for p in range(3))
    assert {yard.stage.raw("logs", job)[0] for job in jobs} == {b"out 0\n", b"out 1\n", b"out 2\n"}


def test_a_reason_for_waiting_is_shown(yard: KubernetesYard) -> None:
    job = yard.submit("--gpus", "1", "--cores", "1", "--", "true")
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{yard.namespace}/resourcequotas"
    yard.ended(job)
    yard.cluster.request("POST", path, quota)
    try:
        job = yard.submit("--", "true")
        until(lambda: "quota" in json.dumps(yard.stage.job(job)), END_S, "the quota is the reason")
    finally:
        yard.cluster.request("DELETE", f"{path}/none")
    assert yard.ended(job)["state"] == State.SUCCEEDED
