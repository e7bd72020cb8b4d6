"""Bad days of a running job on a real cluster: the API server away, objects deleted by others, tokens expired."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from switchyard.agent.backends import TERMINAL_STATES, marker_of
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import (
    END_S,
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
from tests.kubernetes.faulty_api import FaultyApi

pytestmark = pytest.mark.kubernetes
PAUSE_S = 20.0  # twice as long as the agent waits for an answer


def test_an_api_server_that_is_paused_for_20_seconds_while_the_job_ends(
    agent: KubernetesAgent, harmed_cluster: KubernetesCluster
) -> None:
    lease = a_job(agent.folder, f"echo before; {waits_for(agent)}; echo after; touch {agent.folder}/over; exit 4")
    native_id = begin(agent, lease)
    harmed_cluster.pause("apiserver")
    try:
        (agent.folder / "go").touch()
        until_s = time.monotonic() + PAUSE_S
        while time.monotonic() < until_s or not (agent.folder / "over").exists():
            assert time.monotonic() < until_s + END_S, "the job ends meanwhile"
            agent.runner.run_once(may_start=True)  # not refresh: it runs on a thread of its own
            assert not agent.ends(), "nobody knows how it ended"
            agent.backend.watch(0.2)
    finally:
        harmed_cluster.resume("apiserver")
    assert (end_of(agent).exit_code, output_of(agent, native_id)) == (4, b"before\nafter\n")
    assert runs(agent.folder) == 1


def test_an_api_server_that_comes_back_with_an_empty_watch_cache(
    agent: KubernetesAgent, harmed_cluster: KubernetesCluster
) -> None:
    lease = a_job(agent.folder, f"echo before; {waits_for(agent)}; echo after")
    native_id = begin(agent, lease)
    harmed_cluster.kill("apiserver")
    (agent.folder / "go").touch()
    agent.runner.run_once(may_start=True)
    assert not agent.ends()
    harmed_cluster.start("apiserver")
    assert end_of(agent).seen is ObservedState.SUCCEEDED
    assert output_of(agent, native_id) == b"before\nafter\n"
    agent.journal.take([a_lease("true")])
    agent.until(lambda: len(agent.ends()) == 2, "another job runs")


def test_etcd_that_is_paused(agent: KubernetesAgent, harmed_cluster: KubernetesCluster) -> None:
    lease = a_job(agent.folder, "echo done")
    harmed_cluster.pause("etcd")
    try:
        agent.journal.take([lease])
        agent.runner.run_once(may_start=True)
        assert not agent.ends()
    finally:
        harmed_cluster.resume("etcd")
    assert end_of(agent).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1


def test_etcd_that_is_killed_while_the_job_ends(agent: KubernetesAgent, harmed_cluster: KubernetesCluster) -> None:
    lease = a_job(agent.folder, f"{waits_for(agent)}; touch {agent.folder}/over; echo done; exit 4")
    late = a_lease("echo", "late")
    native_id = begin(agent, lease)
    harmed_cluster.kill("etcd")
    (agent.folder / "go").touch()
    agent.journal.take([late])
    while not (agent.folder / "over").exists():
        agent.runner.run_once(may_start=True)
        agent.backend.watch(0.1)
    assert not agent.ends(), "nobody knows how it ended"
    harmed_cluster.start("etcd")
    agent.until(lambda: len(agent.ends()) == 2, "both jobs end")
    assert {end.job: end.exit_code for end in agent.ends()} == {lease.job: 4, late.job: 0}
    assert output_of(agent, native_id) == b"done\n"
    assert runs(agent.folder) == 1


def test_a_job_that_somebody_deletes_ends_when_it_is_gone_and_does_not_run_again(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, "sleep 600")
    name = begin(agent, lease)
    agent.cluster.kubectl("delete", "job", name, "--namespace", agent.namespace, "--wait=false")
    end = end_of(agent)
    assert "deleted" in end.reason
    assert end.seen in TERMINAL_STATES
    assert end.seen is not ObservedState.SUCCEEDED
    assert (runs(agent.folder), agent.jobs()) == (1, [])


def test_a_job_that_was_orphaned_is_followed_to_its_end(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, f"{waits_for(agent)}; echo done; exit 5")
    name = begin(agent, lease)
    agent.cluster.kubectl("delete", "job", name, "--namespace", agent.namespace, "--cascade=orphan")
    agent.until(lambda: not agent.jobs(), "the Job is gone")
    for _ in range(20):
        agent.run_once()
        agent.backend.watch(0.05)
    assert not agent.ends(), "its pod runs"
    (agent.folder / "go").touch()
    assert (end_of(agent).exit_code, output_of(agent, name)) == (5, b"done\n")
    agent.backend.forget(name)
    agent.until(lambda: not pods_of(agent), "the pod is removed as well")


def test_an_orphaned_job_can_be_cancelled(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, "sleep 600")
    name = begin(agent, lease)
    agent.cluster.kubectl("delete", "job", name, "--namespace", agent.namespace, "--cascade=orphan")
    agent.until(lambda: not agent.jobs(), "the Job is gone")
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    assert end_of(agent).seen is ObservedState.CANCELLED
    assert pods_of(agent) == []


def test_a_pod_that_somebody_deletes_is_a_failure_of_the_cluster(agent: KubernetesAgent) -> None:
    lease = a_job(agent.folder, "sleep 600")
    begin(agent, lease)
    agent.cluster.kubectl("delete", "pod", "--all", "--namespace", agent.namespace, "--wait=false")
    end = end_of(agent)
    assert (end.seen, end.cause.name) == (ObservedState.FAILED, "CLUSTER")
    assert "deleted" in end.reason
    assert runs(agent.folder) == 1


def test_an_expired_token_hurts_no_job_and_a_new_one_is_taken(
    make_agent: MakeAgent, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    api = FaultyApi(cluster, tmp_path)
    try:
        agent = make_agent(kubernetes=api.section)
        lease = a_job(agent.folder, f"{waits_for(agent)}; echo done")
        name = begin(agent, lease)
        api.token.write_text("expired")
        late = a_lease("true")
        agent.journal.take([late])
        for _ in range(5):
            agent.runner.run_once(may_start=True)
            agent.backend.watch(0.5)
        assert not agent.ends()
        api.token.write_text(cluster.token)
        (agent.folder / "go").touch()
        agent.until(lambda: len(agent.ends()) == 2, "both jobs end")
        assert {end.seen for end in agent.ends()} == {ObservedState.SUCCEEDED}
        assert output_of(agent, name) == b"done\n"
    finally:
        api.close()


def test_a_quota_that_is_used_up_is_the_reason_why_the_job_waits(agent: KubernetesAgent) -> None:
    quota = {"metadata": {"name": "none", "namespace": agent.namespace}, "spec": {"hard": {"pods": "0"}}}
    agent.cluster.request("POST", f"/api/v1/namespaces/{agent.namespace}/resourcequotas", quota)
    lease = a_job(agent.folder)
    agent.journal.take([lease])
    name = marker_of(lease).lower()
    agent.until(lambda: "quota" in agent.backend.status([name])[name].reason, "the quota is named")
    agent.cluster.kubectl("delete", "resourcequota", "none", "--namespace", agent.namespace)
    assert end_of(agent).seen is ObservedState.SUCCEEDED


def test_one_task_of_an_array_is_cancelled_and_the_others_go_on(agent: KubernetesAgent) -> None:
    from msgspec.structs import replace

    script = (
        f"if test $SWITCHYARD_ARRAY_INDEX = 4; then sleep 600; fi; {waits_for(agent)}; exit $SWITCHYARD_ARRAY_INDEX"
    )
    whole = a_lease("sh", "-c", script)
    leases = [replace(whole, fence=7 + step, lo=3 + step, hi=3 + step) for step in range(3)]
    agent.journal.take(leases)
    ids = [f"{marker_of(leases[0]).lower()}/{index}" for index in range(3)]

    def all_run() -> bool:
        return all(status.seen is ObservedState.RUNNING for status in agent.backend.status(ids).values())

    agent.until(all_run, "all run")
    assert len(agent.jobs()) == 1
    agent.journal.request_end([(leases[1].job, leases[1].fence)], cancel=True)
    agent.until(agent.ends, "one ends")
    assert [(end.fence, end.seen) for end in agent.ends()] == [(8, ObservedState.CANCELLED)]
    (agent.folder / "go").touch()
    agent.until(lambda: len(agent.ends()) == 3, "all end")
    assert {end.fence: end.exit_code for end in agent.ends() if end.fence != 8} == {7: 3, 9: 5}
