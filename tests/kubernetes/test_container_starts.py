"""A node's daemons are killed while a container is made: what never began goes back, what may run twice is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends import marker_of
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import KubernetesAgent, a_job, end_of, pods_of, runs, waits_for
from tests.kubernetes.held_runc import HeldRunc

pytestmark = pytest.mark.kubernetes
MADE_TWICE = "made its container 2 times"
Hold = Callable[[str], HeldRunc]


@pytest.fixture
def hold(harmed_cluster: KubernetesCluster, tmp_path: Path) -> Iterator[Hold]:
    """Containers of `a_job` wait at this step of runc."""
    held: list[HeldRunc] = []

    def make(step: str) -> HeldRunc:
        held.append(HeldRunc(harmed_cluster, tmp_path / "runc", step=step, mark="ledger"))
        return held[-1]

    yield make
    for runc in held:
        runc.remove()


def kill_at(agent: KubernetesAgent, runc: HeldRunc, daemon: str) -> None:
    """Kill a daemon of the node whose container waits; then the container goes on, and the daemon comes back."""
    agent.journal.take([a_job(agent.folder)])
    agent.until(lambda: runc.reached_count, "the node makes its container")
    agent.cluster.kill(f"{daemon}/{pods_of(agent)[0]['spec']['nodeName']}")
    runc.go()
    agent.cluster.heal()


def test_a_job_whose_container_was_never_made_goes_back_when_its_job_is_gone(
    agent: KubernetesAgent, hold: Hold
) -> None:
    kill_at(agent, hold("create"), "kubelet")
    end = end_of(agent)
    assert (end.seen, end.cause) == (ObservedState.RETURNED, Cause.CLUSTER)
    assert "failed to create containerd task" in end.reason
    assert (agent.jobs(), pods_of(agent), runs(agent.folder)) == ([], [], 0)


def test_a_job_whose_start_is_in_doubt_fails_and_does_not_go_back(agent: KubernetesAgent, hold: Hold) -> None:
    """The kubelet gave up the start, and runc carried it out."""
    kill_at(agent, hold("start"), "kubelet")
    end = end_of(agent)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.CLUSTER)
    assert "does not know whether its command began" in end.reason
    assert runs(agent.folder) == 1


@pytest.mark.parametrize("step", ["create", "start"])
def test_a_killed_container_runtime_makes_the_container_again(agent: KubernetesAgent, hold: Hold, step: str) -> None:
    """Its command runs once; the API shows the same as if it had begun twice, so that is told."""
    kill_at(agent, hold(step), "containerd")
    end = end_of(agent)
    assert end.seen is ObservedState.SUCCEEDED
    assert MADE_TWICE in end.reason
    assert runs(agent.folder) == 1


def test_a_job_whose_container_was_started_twice_by_its_kubelet_says_so(agent: KubernetesAgent, hold: Hold) -> None:
    """The kubelet is back while the start hangs: it makes another container, and then runc carries out both starts.

    containerd kills the first container as soon as it runs, perhaps before its command has begun.
    """
    runc = hold("start")
    agent.journal.take([a_job(agent.folder, waits_for(agent))])
    agent.until(lambda: runc.reached_count, "the node makes its container")
    agent.cluster.kill(f"kubelet/{pods_of(agent)[0]['spec']['nodeName']}")
    agent.cluster.heal()
    agent.until(lambda: runc.reached_count == 2, "the kubelet has made another container")
    runc.go()
    agent.until(lambda: main_of(agent)["restartCount"], "the kubelet shows the second container")
    name = marker_of(agent.journal.attempts()[0].lease).lower()
    agent.until(lambda: MADE_TWICE in agent.backend.status([name])[name].reason, "it is told while the job runs")
    (agent.folder / "go").touch()
    end = end_of(agent)
    assert (end.seen, end.exit_code) == (ObservedState.SUCCEEDED, 0)
    assert MADE_TWICE in end.reason
    assert "its command may have begun more than once" in end.reason
    assert runs(agent.folder) in (1, 2)


def main_of(agent: KubernetesAgent) -> dict[str, Any]:
    """What the kubelet says of the job's container."""
    (status,) = pods_of(agent)[0]["status"]["containerStatuses"]
    return dict(status)
