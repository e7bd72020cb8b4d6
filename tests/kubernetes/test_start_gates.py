"""Kubernetes makes a second pod of a task on a real cluster, and the command runs once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from switchyard.features.kubernetes.agent.api.api_errors import ApiUnavailable
from switchyard.features.kubernetes.agent.api.rights import PATCH_PODS, rule_text
from switchyard.features.kubernetes.agent.doctor.doctor_kubernetes import check_kubernetes
from switchyard.features.kubernetes.agent.jobs.start_gates import StartGates
from switchyard.features.kubernetes.agent.pods.labels import START_GATE
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
from tests.kubernetes.faulty_api import ApiFault, FaultyApi
from tests.kubernetes.rights import TakenRights
from tests.processes import PATIENCE_S, until

pytestmark = pytest.mark.kubernetes
GATES = [{"name": START_GATE}]
JOBS = 20
KILL_AFTER_S, START_AFTER_S = 0.8, 2.0  # as long as the Job controller creates the pods of so many Jobs


@pytest.fixture
def api(cluster: KubernetesCluster, tmp_path: Path) -> Iterator[FaultyApi]:
    proxy = FaultyApi(cluster, tmp_path)
    yield proxy
    proxy.close()


def copy_pod(agent: KubernetesAgent, first: dict[str, Any], *, gates: list[dict[str, str]]) -> str:
    """Make a second pod of the same task, as the Job controller does after an answer that was lost."""
    kept = {key: first["metadata"][key] for key in ("labels", "annotations", "ownerReferences", "finalizers")}
    spec = {key: value for key, value in first["spec"].items() if key != "nodeName"} | {"schedulingGates": gates}
    second = {"metadata": {"generateName": first["metadata"]["generateName"], **kept}, "spec": spec}
    return str(agent.cluster.request("POST", f"/api/v1/namespaces/{agent.namespace}/pods", second)["metadata"]["name"])


def ungated(agent: KubernetesAgent) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(agent) if not pod["spec"].get("schedulingGates")]


def test_a_second_pod_does_not_start_and_does_not_end_the_job(agent: KubernetesAgent) -> None:
    name = begin(agent, a_job(agent.folder, f"{waits_for(agent)}; echo done"))
    (first,) = pods_of(agent)
    assert first["spec"].get("schedulingGates") is None, "the agent lifted its gate"
    copy_pod(agent, first, gates=GATES)
    for _ in range(20):
        agent.run_once()
        agent.backend.watch(0.05)
    assert ungated(agent) == [first["metadata"]["name"]]
    (agent.folder / "go").touch()
    end = end_of(agent)
    assert (end.seen, end.reason, output_of(agent, name)) == (ObservedState.SUCCEEDED, "", b"done\n")
    assert runs(agent.folder) == 1


@pytest.mark.parametrize("is_lifted", [False, True])
def test_an_agent_killed_around_the_lift_lets_the_same_pod_start(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, is_lifted: bool
) -> None:
    """It is killed after the record; in one case the patch was carried out, and its answer was lost."""
    agent = make_agent()
    lease, real = a_job(agent.folder), StartGates._lift
    chosen: list[str] = []

    def killed(self: StartGates, pod: Any) -> Any:
        if is_lifted and not chosen:
            real(self, pod)
        chosen.append(pod.metadata.uid)
        return ApiUnavailable("the agent is killed here")

    with monkeypatch.context() as patch:
        patch.setattr(StartGates, "_lift", killed)
        agent.journal.take([lease])
        agent.until(lambda: chosen, "its pod is to be let start")
        agent.kill()
    (first,) = pods_of(agent)
    made_s = datetime.fromisoformat(first["metadata"]["creationTimestamp"]).timestamp()
    until(lambda: time.time() > made_s + 2, PATIENCE_S, "the other pod is younger, and is removed first")
    copy_pod(agent, first, gates=GATES)
    assert is_lifted or runs(agent.folder) == 0
    again = make_agent()
    assert list(again.backend._store.all()[0].starts.values()) == [first["metadata"]["uid"]]
    assert end_of(again).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_lost_patch_or_a_deleted_pod_starts_nothing_twice(
    make_agent: MakeAgent, api: FaultyApi, is_sent: bool
) -> None:
    agent = make_agent(kubernetes=api.section)
    api.fault = ApiFault("PATCH", "/pods/", is_sent=is_sent)
    agent.journal.take([a_job(agent.folder)])
    assert end_of(agent).seen is ObservedState.SUCCEEDED
    assert (runs(agent.folder), api.fault.times) == (1, 0)


def test_without_the_right_to_patch_pods_it_is_told_what_runs_twice(
    make_agent: MakeAgent, cluster: KubernetesCluster, namespace: str, api: FaultyApi
) -> None:
    rights = TakenRights(cluster, namespace, without=PATCH_PODS)
    try:
        rights.write_token(api.token)
        agent = make_agent(kubernetes=api.section)
        name = begin(agent, a_job(agent.folder, f"echo hi; {waits_for(agent)}"))
        assert "may not patch pods" in str(agent.backend.state().values["start_gates_off"])
        findings = check_kubernetes(agent.backend._site, {}, namespaces=[namespace])
        (finding,) = (row for row in findings if "may not patch pods" in row.detail)
        assert finding.is_ok is None
        assert rule_text(PATCH_PODS) in finding.advice
        (first,) = pods_of(agent)
        copy_pod(agent, first, gates=[])
        agent.until(lambda: runs(agent.folder) == 2 or len(pods_of(agent)) == 1, "Kubernetes has dealt with it")
        is_twice = runs(agent.folder) == 2
        (agent.folder / "go").touch()
        end = end_of(agent)
        assert not is_twice or "its command ran in each" in end.reason, end
        assert b"hi\n" in output_of(agent, name)
    finally:
        rights.remove()


def test_commands_run_once_although_the_api_server_is_killed_while_pods_are_created(
    make_agent: MakeAgent, harmed_cluster: KubernetesCluster
) -> None:
    """The Job controller makes a pod again if the answer to its create is lost."""
    agent = make_agent()
    agent.journal.take([a_job(agent.folder, "sleep 1") for _ in range(JOBS)])
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < KILL_AFTER_S:
        agent.run_once()
    harmed_cluster.kill("apiserver")
    time.sleep(START_AFTER_S)  # the time away is the subject
    harmed_cluster.start("apiserver")
    agent.until(lambda: len(agent.ends()) == JOBS, "all jobs end")
    assert runs(agent.folder) == JOBS
    assert {end.seen for end in agent.ends()} == {ObservedState.SUCCEEDED}
