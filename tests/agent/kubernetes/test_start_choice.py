"""Exactly one pod of each task starts, whatever Kubernetes makes and the agent remembers."""

from __future__ import annotations

from typing import Any

from switchyard.features.kubernetes.agent.jobs.job_status import JobView, status_of
from switchyard.features.kubernetes.agent.jobs.start_choice import choose_starts, double_start_note
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.features.kubernetes.agent.pods.pod_status import read_pod
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.kubernetes.objects import NOW_S, a_condition, a_job, a_pod, ago, running, terminated

GATED = a_condition("PodScheduled", "SchedulingGated", "gates", status="False")


def held(uid: str, **more: Any) -> PodObject:
    return a_pod("Pending", None, GATED, node="", uid=uid, is_held=True, **more)


def chosen(*pods: PodObject, gone: tuple[PodObject, ...] = (), starts: Any = None, **more: Any) -> dict[int, str]:
    return {index: pod.metadata.uid for index, pod in choose_starts(pods, gone, starts or {}, **more).items()}


def test_the_oldest_pod_of_each_index_starts() -> None:
    assert chosen(held("new", created=5), held("old", created=9)) == {0: "old"}
    assert chosen(held("a", index=0), held("b", index=1), held("c", index=1, created=99)) == {0: "a", 1: "c"}
    assert chosen(held("a", created=9, deleted=1), held("b")) == {0: "b"}, "one is being deleted"


def test_a_recorded_pod_starts_again_and_no_other_one() -> None:
    assert chosen(held("old", created=9), held("new"), starts={0: "new"}) == {0: "new"}
    assert chosen(held("b"), starts={0: "a"}) == {}, "nobody knows whether the first one ran"
    assert chosen(a_pod("Running", running(), uid="a"), held("b"), starts={0: "a"}) == {}
    assert chosen(held("b"), gone=(a_pod("Succeeded", terminated(0), uid="a"),), starts={0: "a"}) == {}


def test_a_pod_without_a_gate_counts_as_started() -> None:
    assert chosen(a_pod("Pending", node="", uid="a"), held("b")) == {}
    assert chosen(held("b"), gone=(a_pod("Pending", node="", uid="a"),)) == {}


def test_another_pod_starts_if_the_recorded_one_certainly_never_ran() -> None:
    assert chosen(held("b"), starts={0: "a"}, never_ran={"a"}) == {0: "b"}
    assert chosen(held("b"), gone=(a_pod("Pending", node="", uid="a"),), starts={0: "a"}, never_ran={"a"}) == {0: "b"}
    assert chosen(held("a", created=9), held("b"), starts={0: "a"}, never_ran={"a"}) == {0: "b"}, "the watch is behind"
    assert chosen(held("b"), gone=(a_pod("Running", uid="c"),), starts={0: "a"}, never_ran={"a"}) == {}


def test_a_pod_that_was_not_started_is_no_part_of_the_attempt() -> None:
    done, surplus = a_pod("Succeeded", terminated(0), uid="a"), held("b")
    status = status_of(JobView(job=a_job(), pods=[done, surplus]), now_s=NOW_S)
    assert (status.seen, status.exit_code) == (ObservedState.SUCCEEDED, 0)
    status = status_of(JobView(job=a_job(), pods=[surplus, a_pod("Running", running(), uid="a")]), now_s=NOW_S)
    assert status.seen is ObservedState.RUNNING
    assert status_of(JobView(job=a_job(), pods=[surplus]), now_s=NOW_S).reason.startswith("waits for the agent")


def test_waiting_for_a_node_counts_from_the_lift_of_the_gate() -> None:
    pod = a_pod("Pending", None, a_condition("PodScheduled", "Unschedulable", status="False"), node="", created=600)
    assert read_pod(pod).waits_since_s == NOW_S - 600
    pod.metadata.annotations["switchyard/started"] = ago(20)
    assert read_pod(pod).waits_since_s == NOW_S - 20
    assert read_pod(held("a")).rule.wait is None


def test_a_command_that_ran_in_two_pods_is_told() -> None:
    pods = [a_pod("Succeeded", terminated(0), uid="a", created=9), a_pod("Running", running(), uid="b", created=5)]
    assert double_start_note(pods) == (
        "Kubernetes made 2 pods for it, and its command ran in each: pod-None-5, pod-None-9"
    )
    assert double_start_note([pods[0], held("c")]) == ""
    assert double_start_note([a_pod("Running", running(), index=0), a_pod("Running", running(), index=1)]) == ""
