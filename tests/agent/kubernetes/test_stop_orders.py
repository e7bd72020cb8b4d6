"""When the agent gives up an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from switchyard.features.kubernetes.agent.jobs.attempt_status import stop_order_of
from switchyard.features.kubernetes.agent.jobs.job_status import JobView
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.kubernetes.objects import NOW_S, a_condition, a_job, a_pod, ago, an_event, running, terminated, waiting

F, BACK = ObservedState.FAILED, ObservedState.RETURNED
SITE = KubernetesSite(image_wait_s=50, config_wait_s=50, gang_wait_s=50, start_wait_s=50)
NO_NODE = a_condition("PodScheduled", "Unschedulable", "0/1 nodes are available", status="False")
GANG = a_job(spec={"completions": 2, "completionMode": "Indexed"})


def order(
    *pods: Any, job: Any = None, site: KubernetesSite = SITE, **view: Any
) -> tuple[ObservedState, str, Cause] | None:
    whole = JobView(job=job or a_job(), pods=pods, **view)
    found = stop_order_of(whole, now_s=NOW_S, site=site)
    return None if found is None else (found.seen, found.reason, found.cause)


def pulls(created: float) -> Any:
    return a_pod("Pending", waiting("ErrImagePull", "not found"), created=created, uid="p")


def test_an_image_that_cannot_be_pulled_fails_after_the_bound() -> None:
    assert order(pulls(40)) is None
    assert order(pulls(60)) == (F, "its image cannot be pulled: not found (for 50 s)", Cause.CLUSTER)


def test_a_long_pull_that_fails_at_last_has_the_whole_bound() -> None:
    late = an_event("Failed", 'Failed to pull image "x": reset', uid="p", first=10)
    assert order(pulls(4000), events=[late]) is None


def test_an_image_name_that_is_none_fails_at_once() -> None:
    pod = a_pod("Pending", waiting("InvalidImageName", "A:B:C"), created=0)
    assert order(pod) == (F, "its image name is not valid: A:B:C", Cause.JOB)


def test_a_missing_secret_fails_after_the_bound() -> None:
    pod = a_pod("Pending", waiting("CreateContainerConfigError", 'secret "db" not found'), created=60)
    assert order(pod) == (F, 'its container cannot be created: secret "db" not found (for 50 s)', Cause.CLUSTER)


def test_a_mount_that_fails_has_its_bound_from_the_first_failure() -> None:
    pod = a_pod("Pending", waiting("ContainerCreating"), created=500, uid="m")
    event = an_event("FailedMount", "no such configmap", uid="m", first=40)
    assert order(pod, events=[event]) is None
    event = an_event("FailedMount", "no such configmap", uid="m", first=60)
    assert order(pod, events=[event]) == (F, "its pod cannot be prepared: no such configmap (for 50 s)", Cause.CLUSTER)


def test_a_pod_without_a_node_goes_back_only_where_the_site_bounds_the_wait() -> None:
    pod = a_pod("Pending", None, NO_NODE, node="", created=60)
    assert order(pod) == (BACK, "waits for a node: 0/1 nodes are available (for 50 s)", Cause.CLUSTER)
    assert order(pod, site=KubernetesSite()) is None


def test_a_gang_of_which_some_run_fails_after_the_bound() -> None:
    waits = a_pod("Pending", None, NO_NODE, node="", index=1, created=10)
    assert order(a_pod("Running", running(since=40), index=0), waits, job=GANG) is None
    found = order(a_pod("Running", running(since=60), index=0), waits, job=GANG)
    assert found == (
        F,
        "only 1 of its 2 pods ran within 50 s: waits for a node: 0/1 nodes are available",
        Cause.CLUSTER,
    )


def test_a_gang_whose_node_wait_is_over_fails_if_one_of_it_began() -> None:
    waits = a_pod("Pending", None, NO_NODE, node="", index=1, created=60)
    found = order(a_pod("Running", running(since=10), index=0), waits, job=GANG)
    assert found == (F, "waits for a node: 0/1 nodes are available (for 50 s)", Cause.CLUSTER)


def test_a_gang_that_runs_goes_on() -> None:
    pods = [a_pod("Running", running(since=600), index=index) for index in range(2)]
    assert order(*pods, job=GANG) is None


def test_a_second_start_is_refused() -> None:
    first, second = a_pod("Failed", terminated(1), uid="a"), a_pod("Running", running(), uid="b")
    words = "Kubernetes made a second pod for it, and the agent ended both: it may have run in part"
    assert order(first, second) == (F, words, Cause.CLUSTER)
    assert order(second, gone_pods=[first]) == (F, words, Cause.CLUSTER)


def test_tasks_of_a_range_are_no_second_starts() -> None:
    job = a_job(spec={"completions": 2, "completionMode": "Indexed"})
    pods = [a_pod("Failed", terminated(1), index=0), a_pod("Running", running(), index=1)]
    assert order(*pods, job=job, index=0) is None
    assert order(*pods, job=job, index=1) is None


def test_a_second_pod_that_waits_at_the_gate_is_no_second_start() -> None:
    first, second = a_pod("Running", running(), uid="a"), a_pod("Pending", node="", uid="b", is_held=True)
    assert order(first, second) is None
    assert order(second, gone_pods=[a_pod("Succeeded", terminated(0), uid="a")]) is None


def test_a_lost_start_is_given_up_after_a_while() -> None:
    """Nobody knows whether the pod that was let start ran; the other pod must not start."""
    view = JobView(job=a_job(), pods=[a_pod("Pending", node="", uid="b", created=40, is_held=True)])
    found = stop_order_of(view, now_s=NOW_S, site=KubernetesSite(), starts={0: "a"})
    assert found is not None
    assert (found.seen, "it is not known whether its command began" in found.reason) == (F, True)
    unseen_end = replace(view, gone_pods=[a_pod("Pending", node="", uid="a")])
    assert stop_order_of(unseen_end, now_s=NOW_S, site=KubernetesSite(), starts={0: "a"}) == found
    ended = replace(view, gone_pods=[a_pod("Succeeded", terminated(0), uid="a")])
    assert stop_order_of(ended, now_s=NOW_S, site=KubernetesSite(), starts={0: "a"}) is None
    assert stop_order_of(view, now_s=NOW_S - 20, site=KubernetesSite(), starts={0: "a"}) is None
    assert stop_order_of(view, now_s=NOW_S, site=KubernetesSite(), starts={0: "b"}) is None, "it is let start now"
    assert stop_order_of(view, now_s=NOW_S, site=KubernetesSite()) is None, "no pod was let start yet"


CREATE_CUT = "failed to create containerd task: context canceled: unknown"


def unmade(index: int | None = None, **more: Any) -> Any:
    """A pod whose container could not be made."""
    return a_pod("Failed", terminated(128, "StartError", CREATE_CUT), index=index, **more)


def test_an_attempt_whose_container_was_never_made_goes_back_when_its_job_is_gone() -> None:
    back = (BACK, f"its command could not be started: {CREATE_CUT}", Cause.CLUSTER)
    assert order(unmade()) == back
    assert order(unmade(0), a_pod("Pending", node="", index=1), job=GANG) == back
    assert order(unmade(0), unmade(1), job=GANG) == back


@pytest.mark.parametrize(
    "other",
    [
        a_pod("Running", running(), index=1),
        a_pod("Pending", waiting("ContainerCreating"), index=1),
        a_pod("Succeeded", terminated(0, "Completed"), index=1),
        a_pod("Failed", terminated(128, "StartError", "failed to start containerd task: context canceled"), index=1),
    ],
)
def test_a_gang_of_which_a_pod_may_have_begun_does_not_go_back(other: Any) -> None:
    assert order(unmade(0), other, job=GANG) is None
    assert order(unmade(0), job=GANG, gone_pods=[other]) is None


def test_an_attempt_that_went_back_too_often_does_not_go_back() -> None:
    assert order(unmade(), job=a_job(labels={"switchyard/attempt": "20"})) is None


@pytest.mark.parametrize(
    ("pod", "is_stopped"),
    [
        (a_pod("Running", running(), deleted=5), True),
        (a_pod("Failed", terminated(143, ended=2), deleted=5), True),
        (a_pod("Failed", terminated(3, ended=20)), False),
        (a_pod("Pending", waiting("ContainerCreating")), False),
    ],
)
def test_a_job_suspended_after_it_began_is_not_resumed(pod: Any, is_stopped: bool) -> None:
    found = order(pod, job=a_job(spec={"suspend": True}))
    if is_stopped:
        words = "its Job was suspended after it had begun, and resuming it would run it again"
        assert found == (F, words, Cause.PREEMPTED)
    else:
        assert found is None


def test_what_is_over_or_being_deleted_gets_no_order() -> None:
    assert order(pulls(60), job=a_job(deletionTimestamp=ago(1))) is None
    assert order(pulls(60), is_deleted=True) is None
    assert stop_order_of(JobView(job=None), now_s=NOW_S, site=SITE) is None
