"""Jobs that somebody edits on a real cluster: they are followed to their end, can be cancelled, and run once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.features.kubernetes.agent.jobs.job_submitter import AGENT_LABEL
from switchyard.features.kubernetes.agent.pods.labels import CLUSTER_LABEL, INDEX_LABEL, MANAGED_BY_LABEL
from switchyard.model.job.lifecycle import ObservedState
from tests.kubernetes.builders import KubernetesAgent, a_job, begin, end_of, output_of, pods_of, runs, waits_for

pytestmark = pytest.mark.kubernetes
NO_LABELS = {"metadata": {"labels": dict.fromkeys((MANAGED_BY_LABEL, CLUSTER_LABEL, AGENT_LABEL))}}


def edit(agent: KubernetesAgent, name: str, change: dict[str, Any]) -> None:
    agent.cluster.request("PATCH", f"/apis/batch/v1/namespaces/{agent.namespace}/jobs/{name}", change)


def test_a_job_whose_labels_were_taken_off_is_followed_to_its_end(agent: KubernetesAgent) -> None:
    name = begin(agent, a_job(agent.folder, f"{waits_for(agent)}; echo done; exit 5"))
    edit(agent, name, NO_LABELS)
    (agent.folder / "go").touch()
    assert (end_of(agent).exit_code, output_of(agent, name), runs(agent.folder)) == (5, b"done\n", 1)


def test_a_job_whose_labels_were_taken_off_can_be_cancelled(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, "sleep 600")
    edit(agent, begin(agent, lease), NO_LABELS)
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    assert end_of(agent).seen is ObservedState.CANCELLED
    assert (agent.jobs(), pods_of(agent)) == ([], [])


@pytest.mark.parametrize("change", [{"parallelism": 0}, {"activeDeadlineSeconds": 1}], ids=lambda row: next(iter(row)))
def test_a_job_that_is_ended_by_an_edit_fails_in_words(agent: KubernetesAgent, change: dict[str, Any]) -> None:
    name = begin(agent, a_job(agent.folder, "sleep 600"))
    edit(agent, name, {"spec": change})
    end = end_of(agent)
    assert end.seen is ObservedState.FAILED
    assert end.reason
    agent.until(lambda: not pods_of(agent) or agent.jobs()[0]["status"].get("conditions"), "Kubernetes has ended it")
    assert runs(agent.folder) == 1


@pytest.mark.parametrize("act", ["exit", "delete"])
def test_a_higher_backoff_limit_starts_no_command_again(agent: KubernetesAgent, act: str) -> None:
    name = begin(agent, a_job(agent.folder, f"{waits_for(agent)}; exit 3"))
    edit(agent, name, {"spec": {"backoffLimit": 6}})
    if act == "delete":
        agent.cluster.kubectl("delete", "pod", "--all", "--namespace", agent.namespace, "--wait=false")
    (agent.folder / "go").touch()
    assert end_of(agent).seen is ObservedState.FAILED

    def has_failed() -> bool:
        conditions = agent.jobs()[0]["status"].get("conditions", [])
        return any(row["type"] == "Failed" for row in conditions)

    agent.until(has_failed, "Kubernetes has ended the Job, and starts no other pod")
    assert runs(agent.folder) == 1


def test_a_second_pod_of_a_task_ends_that_task_alone(agent: KubernetesAgent) -> None:
    """As a controller makes it that has lost sight of the first. Kubernetes may remove it before the agent sees it."""
    whole = a_job(agent.folder, waits_for(agent))
    leases = [replace(whole, fence=7 + index, lo=index, hi=index) for index in range(2)]
    agent.journal.take(leases)
    agent.until(lambda: runs(agent.folder) == 2, "both tasks run")
    first = next(pod for pod in pods_of(agent) if pod["metadata"]["labels"][INDEX_LABEL] == "0")
    kept = {key: first["metadata"][key] for key in ("labels", "annotations", "ownerReferences", "finalizers")}
    spec = {key: value for key, value in first["spec"].items() if key != "nodeName"}
    second = {"metadata": {"generateName": first["metadata"]["generateName"], **kept}, "spec": spec}
    agent.cluster.request("POST", f"/api/v1/namespaces/{agent.namespace}/pods", second)
    agent.until(lambda: agent.ends() or len(pods_of(agent)) == 2, "the second pod is dealt with")
    (agent.folder / "go").touch()
    agent.until(lambda: len(agent.ends()) == 2, "both tasks end")
    ends = {end.fence: end for end in agent.ends()}
    assert ends[8].seen is ObservedState.SUCCEEDED
    is_refused = ends[7].seen is ObservedState.FAILED and "Kubernetes made a second pod for it" in ends[7].reason
    assert is_refused or ends[7].seen is ObservedState.SUCCEEDED, ends[7]
