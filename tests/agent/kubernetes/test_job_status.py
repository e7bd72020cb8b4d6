"""What a Job with its pods and events means, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.agent.backends import Status
from switchyard.features.kubernetes.agent.jobs.job_status import (
    CANCELLED,
    JobView,
    NodeState,
    StopOrder,
    restart_note,
    status_of,
)
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.kubernetes.objects import (
    JOB_UID,
    NOW_S,
    a_condition,
    a_job,
    a_pod,
    ago,
    an_event,
    running,
    terminated,
    waiting,
)

S, R, OK, F, C, LOST = (
    ObservedState.SUBMITTED,
    ObservedState.RUNNING,
    ObservedState.SUCCEEDED,
    ObservedState.FAILED,
    ObservedState.CANCELLED,
    ObservedState.LOST,
)
COMPLETE = a_condition("Complete", "CompletionsReached")
LIMIT = a_condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
POLICY = a_condition(
    "Failed", "PodFailurePolicy", "Container main for pod ns/p failed with exit code 3 matching FailJob rule at index 1"
)
DISRUPTED = a_condition(
    "Failed", "PodFailurePolicy", "Pod ns/p has condition DisruptionTarget matching FailJob rule at index 0"
)
TARGET = a_condition("FailureTarget", "BackoffLimitExceeded")
FORBIDDEN = 'Error creating: pods "yard-x-1-1-abcde" is forbidden: '
QUOTA = FORBIDDEN + "exceeded quota: compute, requested: cpu=2, used: cpu=4, limited: cpu=4"
NO_ACCOUNT = FORBIDDEN + 'error looking up service account ns/nobody: serviceaccount "nobody" not found'
NO_CLASS = FORBIDDEN + "no PriorityClass with name gold was found"
TOO_SMALL = FORBIDDEN + "minimum memory usage per Container is 1Gi, but request is 64Mi"


def refused(message: str) -> Any:
    return an_event("FailedCreate", message, uid=JOB_UID)


def status(view: JobView, **options: Any) -> Status:
    return status_of(view, now_s=NOW_S, **options)


CASES: dict[str, tuple[JobView, tuple[ObservedState, str, Cause]]] = {
    "nothing yet": (JobView(job=a_job()), (S, "waits for Kubernetes to create its pod", Cause.JOB)),
    "suspended": (
        JobView(job=a_job(spec={"suspend": True})),
        (S, "waits at the cluster: its Job is suspended", Cause.JOB),
    ),
    "quota": (
        JobView(job=a_job(), events=[refused(QUOTA)]),
        (S, "no pod can be created: exceeded quota: compute, requested: cpu=2, used: cpu=4, limited: cpu=4", Cause.JOB),
    ),
    "service account": (
        JobView(job=a_job(), events=[refused(NO_ACCOUNT)]),
        (
            S,
            'no pod can be created: error looking up service account ns/nobody: serviceaccount "nobody" not found',
            Cause.JOB,
        ),
    ),
    "priority class": (
        JobView(job=a_job(), events=[refused(NO_CLASS)]),
        (S, "no pod can be created: no PriorityClass with name gold was found", Cause.JOB),
    ),
    "limit range": (
        JobView(job=a_job(), events=[refused(TOO_SMALL)]),
        (S, "no pod can be created: minimum memory usage per Container is 1Gi, but request is 64Mi", Cause.JOB),
    ),
    "event of another": (
        JobView(job=a_job(), events=[an_event("FailedCreate", QUOTA, uid="other")]),
        (S, "waits for Kubernetes to create its pod", Cause.JOB),
    ),
    "runs": (JobView(job=a_job(), pods=[a_pod("Running", running())]), (R, "", Cause.JOB)),
    "failure target is no end": (
        JobView(job=a_job(TARGET), pods=[a_pod("Running", running(), deleted=5)]),
        (R, "", Cause.JOB),
    ),
    "success criteria are no end": (
        JobView(job=a_job(a_condition("SuccessCriteriaMet")), pods=[a_pod("Running", running())]),
        (R, "", Cause.JOB),
    ),
    "pod ended before the Job": (
        JobView(job=a_job(), pods=[a_pod("Failed", terminated(3))]),
        (F, "exit code 3", Cause.JOB),
    ),
    "complete": (JobView(job=a_job(COMPLETE), pods=[a_pod("Succeeded", terminated(0))]), (OK, "", Cause.JOB)),
    "complete, pod gone": (JobView(job=a_job(COMPLETE)), (OK, "", Cause.JOB)),
    "failed, pod gone, code in the Job": (JobView(job=a_job(POLICY)), (F, "exit code 3", Cause.JOB)),
    "failed, pod gone, disrupted": (
        JobView(job=a_job(DISRUPTED)),
        (F, "the cluster took its node away, and its pod is gone", Cause.PREEMPTED),
    ),
    "failed, pod gone": (
        JobView(job=a_job(LIMIT)),
        (
            F,
            "its pod is gone, and its exit code is not known: Job has reached the specified backoff limit",
            Cause.CLUSTER,
        ),
    ),
    "Job's own deadline": (
        JobView(job=a_job(a_condition("Failed", "DeadlineExceeded", "Job was active longer"))),
        (F, "time limit reached", Cause.JOB),
    ),
    "pod deleted by somebody": (
        JobView(job=a_job(LIMIT), pods=[a_pod("Failed", terminated(143, ended=5), deleted=8)]),
        (F, "its pod was deleted at the cluster by somebody", Cause.CLUSTER),
    ),
    "Job deleted by somebody, pod runs": (
        JobView(job=a_job(), is_deleted=True, pods=[a_pod("Running", running())]),
        (R, "", Cause.JOB),
    ),
    "Job deleted by somebody": (
        JobView(job=a_job(), is_deleted=True, gone_pods=[a_pod("Failed", terminated(143, ended=5), deleted=8)]),
        (C, "its Job was deleted at the cluster by somebody", Cause.CLUSTER),
    ),
    "Job deleted by somebody before a pod": (
        JobView(job=a_job(), is_deleted=True),
        (C, "its Job was deleted at the cluster by somebody", Cause.CLUSTER),
    ),
    "Job removed after its end": (JobView(job=a_job(COMPLETE), is_deleted=True), (OK, "", Cause.JOB)),
    "Job and pod removed after the end": (
        JobView(job=a_job(), is_deleted=True, gone_pods=[a_pod("Failed", terminated(3))]),
        (F, "exit code 3", Cause.JOB),
    ),
    "never seen": (JobView(job=None), (LOST, "the cluster does not know it", Cause.LOST)),
    "being deleted, held by a finalizer": (
        JobView(job=a_job(deletionTimestamp=ago(5), finalizers=["foregroundDeletion"])),
        (S, "it is being deleted, held by foregroundDeletion", Cause.JOB),
    ),
    "unknown state": (JobView(job=a_job(), pods=[a_pod("Floating")]), (ObservedState.UNKNOWN, "", Cause.JOB)),
}


@pytest.mark.parametrize(("view", "expected"), CASES.values(), ids=CASES)
def test_job(view: JobView, expected: tuple[ObservedState, str, Cause]) -> None:
    seen = status(view)
    assert (seen.seen, seen.reason, seen.cause) == expected


def test_code_in_the_job_outlives_the_pod() -> None:
    assert status(JobView(job=a_job(POLICY))).exit_code == 3


def test_times_and_nodes_of_an_end() -> None:
    ended = status(JobView(job=a_job(COMPLETE), pods=[a_pod("Succeeded", terminated(0, began=30, ended=10))]))
    assert ended.ago_us == 10_000_000
    assert ended.began_ago_us == 30_000_000
    assert ended.usage is not None
    assert (ended.usage.elapsed_s, ended.usage.nodes) == (20, "n1")


def test_a_clock_behind_the_clusters_gives_no_negative_ages() -> None:
    view = JobView(job=a_job(), pods=[a_pod("Running", running(since=-50))])
    assert status(view).ago_us == 0


# ---- Nodes that do not answer --------------------------------------------------------------------

VANISHED = a_pod("Running", running(), deleted=100)
COLLECTED = a_pod("Failed", running(), a_condition("DisruptionTarget", "DeletionByTaintManager"), deleted=100)


@pytest.mark.parametrize(
    ("view", "node", "seen"),
    [
        (JobView(job=a_job(LIMIT), pods=[COLLECTED]), NodeState.AWAY, R),
        (JobView(job=a_job(LIMIT), pods=[COLLECTED]), NodeState.READY, F),
        (JobView(job=a_job(LIMIT), pods=[COLLECTED]), NodeState.GONE, F),
        (JobView(job=a_job(LIMIT), gone_pods=[VANISHED]), NodeState.AWAY, R),
        (JobView(job=a_job(LIMIT), gone_pods=[VANISHED]), NodeState.READY, F),
        (JobView(job=a_job(LIMIT), gone_pods=[VANISHED]), NodeState.GONE, F),
        (JobView(job=a_job(LIMIT), gone_pods=[VANISHED]), NodeState.UNSEEN, R),
        (JobView(job=a_job(), is_deleted=True, gone_pods=[VANISHED]), NodeState.AWAY, R),
        (JobView(job=a_job(), is_deleted=True, gone_pods=[VANISHED]), NodeState.READY, C),
        (JobView(job=a_job(TARGET), pods=[VANISHED]), NodeState.AWAY, R),
    ],
)
def test_nothing_is_over_while_its_node_may_run_it(view: JobView, node: NodeState, seen: ObservedState) -> None:
    assert status(view, nodes=lambda _: node).seen is seen


@pytest.mark.parametrize("job", [a_job(LIMIT), a_job(DISRUPTED)])
def test_a_pod_collected_from_a_removed_node_names_the_node(job: Any) -> None:
    ended = status(JobView(job=job, gone_pods=[COLLECTED]), nodes=lambda _: NodeState.GONE)
    assert (ended.seen, ended.reason, ended.cause) == (F, "its node n1 was lost", Cause.CLUSTER)


def test_words_name_the_node_that_does_not_answer() -> None:
    view = JobView(job=a_job(LIMIT), gone_pods=[VANISHED])
    assert status(view, nodes=lambda _: NodeState.AWAY).text == "node n1 does not answer; it may still run there"


def test_a_pod_that_runs_on_a_node_that_does_not_answer_runs() -> None:
    view = JobView(job=a_job(TARGET), pods=[VANISHED])
    seen = status(view, nodes=lambda _: NodeState.AWAY)
    assert (seen.seen, seen.text) == (R, "node n1 does not answer; it may still run there")


def test_a_pod_that_waits_on_a_node_that_does_not_answer_says_so() -> None:
    """Its kubelet was killed after the command began and before it could tell."""
    view = JobView(job=a_job(), pods=[a_pod("Pending")])
    seen = status(view, nodes=lambda _: NodeState.AWAY)
    assert seen.seen is S
    assert seen.reason == "starts on node n1; its node n1 does not answer: its command may have begun there"


def test_a_pod_gone_from_a_node_that_is_not_known_counts_as_gone_after_the_bound() -> None:
    view = JobView(job=a_job(LIMIT), gone_pods=[VANISHED])
    assert status(view, gone_wait_s=50).seen is R
    assert status_of(view, now_s=NOW_S + 60, gone_wait_s=50).seen is F


# ---- Stop orders ---------------------------------------------------------------------------------

NO_IMAGE = StopOrder(seen=F, reason="its image cannot be pulled (for 300 s)", cause=Cause.CLUSTER)


@pytest.mark.parametrize(
    ("view", "stop", "expected"),
    [
        (
            JobView(job=a_job(deletionTimestamp=ago(1)), pods=[a_pod("Running", running(), deleted=1)]),
            CANCELLED,
            (R, ""),
        ),
        (JobView(job=a_job(deletionTimestamp=ago(1))), CANCELLED, (S, "it is being deleted")),
        (JobView(job=a_job(), is_deleted=True), CANCELLED, (C, "cancelled")),
        (JobView(job=None), CANCELLED, (C, "cancelled")),
        (JobView(job=a_job(COMPLETE), pods=[a_pod("Succeeded", terminated(0))]), CANCELLED, (OK, "")),
        (
            JobView(job=a_job(), is_deleted=True, gone_pods=[a_pod("Succeeded", terminated(0, ended=20), deleted=8)]),
            CANCELLED,
            (OK, ""),
        ),
        (
            JobView(job=a_job(), is_deleted=True, gone_pods=[a_pod("Succeeded", terminated(0, ended=5), deleted=8)]),
            CANCELLED,
            (C, "cancelled"),
        ),
        (JobView(job=a_job(), is_deleted=True, gone_pods=[VANISHED]), CANCELLED, (R, "")),
        (JobView(job=a_job(), is_deleted=True), NO_IMAGE, (F, "its image cannot be pulled (for 300 s)")),
    ],
)
def test_a_stop_is_reported_when_it_is_carried_out(
    view: JobView, stop: StopOrder, expected: tuple[ObservedState, str]
) -> None:
    seen = status(view, stop=stop, nodes=lambda _: NodeState.AWAY)
    assert (seen.seen, seen.reason) == expected


# ---- Arrays --------------------------------------------------------------------------------------


def test_each_index_of_a_range_has_its_own_state() -> None:
    job = a_job(
        spec={"completions": 6, "completionMode": "Indexed"}, status={"completedIndexes": "0,4", "failedIndexes": "5"}
    )
    pods = [
        a_pod("Succeeded", terminated(0), index=0),
        a_pod("Failed", terminated(7), index=1),
        a_pod("Running", running(), index=2),
    ]
    views = [JobView(job=job, pods=pods, index=index, events=[refused(QUOTA)]) for index in range(6)]
    seen = [status(view) for view in views]
    assert [row.seen for row in seen] == [OK, F, R, S, OK, F]
    assert [row.exit_code for row in seen] == [0, 7, None, None, 0, None]
    assert seen[3].reason.startswith("no pod can be created: exceeded quota")
    assert seen[5].reason == "it failed, and its pod is gone: its exit code is not known"


def test_one_index_is_cancelled_and_the_others_go_on() -> None:
    job = a_job(spec={"completions": 2, "completionMode": "Indexed"}, status={"failedIndexes": "0"})
    pods = [a_pod("Failed", terminated(143, ended=5), index=0, deleted=8), a_pod("Running", running(), index=1)]
    assert status(JobView(job=job, pods=pods, index=0), stop=CANCELLED).seen is C
    assert status(JobView(job=job, pods=pods, index=1)).seen is R


# ---- Gangs ---------------------------------------------------------------------------------------

GANG = a_job(spec={"completions": 3, "completionMode": "Indexed"})
UNSCHEDULED = a_condition("PodScheduled", "Unschedulable", "0/1 nodes are available", status="False")


def gang(*pods: Any, job: Any = GANG) -> Status:
    return status(JobView(job=job, pods=pods))


def test_a_gang_runs_when_all_its_pods_run() -> None:
    two = [a_pod("Running", running(since=40), index=0), a_pod("Running", running(since=20), index=1)]
    third = a_pod("Pending", None, UNSCHEDULED, node="", index=2)
    waits = gang(*two, third)
    assert (waits.seen, waits.reason) == (S, "2 of its 3 pods run; waits for a node: 0/1 nodes are available")
    runs = gang(*two, a_pod("Running", running(since=10), index=2))
    assert (runs.seen, runs.ago_us) == (R, 10_000_000)


def test_a_gang_is_done_when_all_are() -> None:
    done = [a_pod("Succeeded", terminated(0), index=index) for index in range(3)]
    assert gang(*done[:2], a_pod("Running", running(), index=2)).seen is R
    assert gang(*done).seen is OK


def test_the_first_failure_of_a_gang_is_its_end() -> None:
    pods = [
        a_pod("Failed", terminated(143, ended=2), index=0, deleted=8),
        a_pod("Failed", terminated(9, ended=10), index=1),
        a_pod("Succeeded", terminated(0, ended=20), index=2),
    ]
    ended = gang(*pods, job=a_job(LIMIT, spec={"completions": 3, "completionMode": "Indexed"}))
    assert (ended.seen, ended.exit_code, ended.reason) == (F, 9, "exit code 9")


def test_a_gang_waits_for_its_pods_to_be_created() -> None:
    job = a_job(spec={"completions": 2, "completionMode": "Indexed"})
    view = JobView(job=job, pods=[a_pod("Running", running(), index=0)], events=[refused(QUOTA)])
    assert status(view).reason.startswith("1 of its 2 pods run; exceeded quota: compute")


# ---- Returned jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "seen"), [("1", ObservedState.RETURNED), ("20", F)])
def test_a_job_that_nodes_refuse_is_returned_only_so_often(attempt: str, seen: ObservedState) -> None:
    pod = a_pod("Failed", reason="UnexpectedAdmissionError", message="no devices")
    view = JobView(job=a_job(labels={"switchyard/attempt": attempt}), pods=[pod])
    assert status(view).seen is seen


def test_a_waiting_pod_shows_its_reason() -> None:
    view = JobView(job=a_job(), pods=[a_pod("Pending", waiting("ErrImagePull", "not found"))])
    seen = status(view)
    assert (seen.seen, seen.reason) == (S, "its image cannot be pulled: not found")


@pytest.mark.parametrize("other", [a_pod("Succeeded", terminated(0, "Completed"), index=1), a_pod("Failed", index=1)])
def test_a_gang_of_which_a_node_refused_one_pod_is_not_returned_if_another_may_have_begun(other: Any) -> None:
    out = a_pod("Failed", index=0, reason="OutOfcpu", message="Node didn't have enough resource: cpu")
    gang = a_job(LIMIT, spec={"completions": 2, "completionMode": "Indexed"})
    assert status(JobView(job=gang, pods=[out, other])).seen is F
    unplaced = a_pod("Pending", node="", index=1)
    assert status(JobView(job=gang, pods=[out], gone_pods=[unplaced])).seen is ObservedState.RETURNED


START_ERROR = terminated(128, "StartError", 'failed to start containerd task "c": context canceled: unknown')
CREATE_ERROR = terminated(128, "StartError", "failed to create containerd task: failed to create shim task: unknown")


def restarted(times: int, last: dict[str, Any], *, index: int | None = None) -> PodObject:
    """A pod whose kubelet replaced the container of the command so often."""
    main = {"name": "main", "state": running(), "lastState": last, "restartCount": times}
    return a_pod("Running", index=index, containerStatuses=[main])


@pytest.mark.parametrize(
    ("pod", "is_told"),
    [
        (restarted(0, {}), False),
        (restarted(1, START_ERROR), True),
        (restarted(1, {"waiting": {}}), True),  # what a kubelet shows of a container that it found created
        (restarted(1, terminated(0)), True),
        (restarted(1, CREATE_ERROR), False),  # its command surely did not begin
        (restarted(2, CREATE_ERROR), True),  # what became of the first is not shown
    ],
)
def test_a_container_that_the_kubelet_made_again_is_told(pod: PodObject, is_told: bool) -> None:
    note = restart_note(JobView(job=a_job(), pods=[pod]))
    assert bool(note) is is_told
    assert restart_note(JobView(job=a_job(), gone_pods=[pod])) == note


def test_a_restart_is_told_of_the_task_that_it_was() -> None:
    pods = [restarted(2, {}, index=1), restarted(0, {}, index=2)]
    job = a_job(spec={"completions": 3})
    assert "made its container 3 times" in restart_note(JobView(job=job, pods=pods, index=1))
    assert restart_note(JobView(job=job, pods=pods, index=2)) == ""
