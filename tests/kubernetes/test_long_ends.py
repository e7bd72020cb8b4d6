"""Ends that take long on a real cluster: nothing counts as over before it is gone, and the note of the job says why."""

from __future__ import annotations

import pytest

from switchyard.model.job.lifecycle import ObservedState
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import (
    KubernetesAgent,
    MakeAgent,
    a_job,
    begin,
    end_of,
    output_of,
    pods_of,
    runs,
    waits_for,
)

pytestmark = pytest.mark.kubernetes
HOLDER = "example.com/holder"
# Kubernetes then evicts a pod at once when its node counts as silent, and not after a grace period more.
EVICTED = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}


def note_of(agent: KubernetesAgent, name: str) -> str:
    return agent.backend.status([name])[name].note or ""


def test_a_job_runs_until_its_silent_node_is_back_although_kubernetes_ends_it(
    make_agent: MakeAgent, harmed_cluster: KubernetesCluster
) -> None:
    """Kubernetes evicts the pod, while the container runs on. With its default, it would start another pod now."""
    agent = make_agent(pod={"tolerations": [EVICTED]})
    lease = a_job(agent.folder, f"{waits_for(agent)}; echo over > {agent.folder}/over; sleep 600")
    name = begin(agent, lease)
    node = pods_of(agent)[0]["spec"]["nodeName"]
    harmed_cluster.kill(f"kubelet/{node}")
    words = f"its node {node} does not answer: it may still run there"
    agent.until(lambda: note_of(agent, name) == words, "it is told")
    agent.until(lambda: "deletionTimestamp" in pods_of(agent)[0]["metadata"], "Kubernetes evicts the pod")
    (agent.folder / "go").touch()
    agent.until(lambda: (agent.folder / "over").exists(), "the command runs on all the while")
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    for _ in range(20):
        agent.run_once()
        agent.backend.watch(0.05)
    assert not agent.ends(), "a cancel is no end either"
    harmed_cluster.heal()
    assert end_of(agent).seen in (ObservedState.CANCELLED, ObservedState.FAILED)
    assert (pods_of(agent), runs(agent.folder)) == ([], 1)


def test_a_cancel_waits_for_a_finalizer_and_names_it(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, "sleep 600")
    name = begin(agent, lease)
    pod = f"/api/v1/namespaces/{agent.namespace}/pods/{pods_of(agent)[0]['metadata']['name']}"
    own = pods_of(agent)[0]["metadata"]["finalizers"]
    agent.cluster.request("PATCH", pod, {"metadata": {"finalizers": [*own, HOLDER]}})
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    agent.until(lambda: note_of(agent, name) == f"it is being deleted, held by {HOLDER}", "the finalizer is named")
    assert not agent.ends()
    agent.cluster.request("PATCH", pod, {"metadata": {"finalizers": None}})
    assert end_of(agent).seen is ObservedState.CANCELLED
    assert (agent.jobs(), pods_of(agent)) == ([], [])


def test_a_cancel_counts_when_the_pod_is_gone_and_tells_the_grace_period(make_agent: MakeAgent) -> None:
    """The command takes its time after SIGTERM."""
    agent = make_agent(kubernetes={"grace_s": 60})
    script = f"trap 'echo asked; {waits_for(agent)}; echo gone > {agent.folder}/gone; exit 1' TERM; sleep 600 & wait"
    lease = a_job(agent.folder, script)
    name = begin(agent, lease)
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    agent.until(lambda: b"asked" in output_of(agent, name), "it is asked to end")
    agent.until(lambda: note_of(agent, name) == "its pod is being ended: it has 60 s after SIGTERM", "it is told")
    assert not agent.ends()
    (agent.folder / "go").touch()
    assert end_of(agent).seen is ObservedState.CANCELLED
    assert (agent.folder / "gone").exists()
    assert agent.jobs() == []


def test_daemons_of_its_node_that_are_killed_hurt_no_running_job(
    agent: KubernetesAgent, harmed_cluster: KubernetesCluster
) -> None:
    name = begin(agent, a_job(agent.folder, f"echo before; {waits_for(agent)}; echo after; exit 6"))
    node = pods_of(agent)[0]["spec"]["nodeName"]
    for daemon in ("kubelet", "containerd"):
        harmed_cluster.kill(f"{daemon}/{node}")
    harmed_cluster.heal()
    (agent.folder / "go").touch()
    assert (end_of(agent).exit_code, output_of(agent, name), runs(agent.folder)) == (6, b"before\nafter\n", 1)


@pytest.mark.parametrize(
    ("daemon", "words"),
    [("controller-manager", "waits for Kubernetes to create its pod"), ("scheduler", "waits for the scheduler")],
)
def test_a_part_of_the_control_plane_that_is_away_is_the_reason_why_a_job_waits(
    agent: KubernetesAgent, harmed_cluster: KubernetesCluster, daemon: str, words: str
) -> None:
    harmed_cluster.kill(daemon)
    agent.journal.take([a_job(agent.folder)])

    def reasons() -> list[str]:
        return [row.timed.report.reason for row in agent.journal.queued()]

    agent.until(lambda: words in reasons(), "the reason is told")
    assert not agent.ends()
    harmed_cluster.start(daemon)
    assert end_of(agent).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1
