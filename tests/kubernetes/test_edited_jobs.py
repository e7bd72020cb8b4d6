"""Jobs that somebody edits on a real cluster: they are followed to their end, can be cancelled, and run once."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.agent.backends.kubernetes.job_submitter import AGENT_LABEL
from switchyard.agent.backends.kubernetes.labels import CLUSTER_LABEL, MANAGED_BY_LABEL
from switchyard.model.lifecycle import ObservedState
from tests.kubernetes.builders import KubernetesAgent, a_job, begin, end_of, output_of, pods_of, runs, waits_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]
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
