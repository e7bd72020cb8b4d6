"""The table of pod states, case by case."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from switchyard.features.kubernetes.agent.namespaces.objects import EventObject, PodObject
from switchyard.features.kubernetes.agent.pods.pod_status import RULES, read_pod
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.kubernetes.objects import a_condition, a_pod, an_event, running, terminated, waiting

S, R, OK, F, BACK, U = (
    ObservedState.SUBMITTED,
    ObservedState.RUNNING,
    ObservedState.SUCCEEDED,
    ObservedState.FAILED,
    ObservedState.RETURNED,
    ObservedState.UNKNOWN,
)
NO_NODES = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available."
PULL = 'Failed to pull image "nope:1": not found'
# What containerd says if its kubelet was killed while it made a container, and while it started the command.
CREATE_CUT = "failed to create containerd task: failed to create shim task: context canceled: unknown"
START_CUT = 'failed to start containerd task "2ee1": context canceled: unknown'
UNSCHEDULED = a_condition("PodScheduled", "Unschedulable", NO_NODES, status="False")
GATED = a_condition("PodScheduled", "SchedulingGated", "waits for gates", status="False")


def disrupted(reason: str, message: str = "") -> dict[str, object]:
    return a_condition("DisruptionTarget", reason, message, at=12)


CASES: list[tuple[str, PodObject, ObservedState, Cause, str]] = [
    ("succeeded", a_pod("Succeeded", terminated(0, "Completed")), OK, Cause.JOB, ""),
    ("exit", a_pod("Failed", terminated(3)), F, Cause.JOB, "exit code 3"),
    ("exit", a_pod("Failed", terminated(143)), F, Cause.JOB, "killed by SIGTERM (signal 15)"),
    ("exit", a_pod("Failed", terminated(255)), F, Cause.JOB, "exit code 255"),
    ("deadline", a_pod("Failed", terminated(137), reason="DeadlineExceeded"), F, Cause.JOB, "time limit reached"),
    ("deadline", a_pod("Failed", reason="DeadlineExceeded"), F, Cause.JOB, "time limit reached"),
    (
        "deadline before the command",
        a_pod("Failed", waiting("ImagePullBackOff", "no such image"), reason="DeadlineExceeded"),
        F,
        Cause.CLUSTER,
        "its time limit passed before its command began: no such image",
    ),
    (
        "deadline before the command",
        a_pod("Failed", waiting("ContainerCreating"), reason="DeadlineExceeded"),
        F,
        Cause.CLUSTER,
        "its time limit passed before its command began: ContainerCreating",
    ),
    (
        "out of memory",
        a_pod("Failed", terminated(137, "OOMKilled"), limits={"memory": "67108864"}),
        F,
        Cause.JOB,
        "out of memory: it used its limit of 64MiB",
    ),
    (
        "out of memory",
        a_pod("Failed", terminated(5, "OOMKilled")),
        F,
        Cause.JOB,
        "out of memory: it used its limit; exit code 5",
    ),
    ("succeeded", a_pod("Succeeded", terminated(0, "OOMKilled")), OK, Cause.JOB, ""),
    (
        "preempted",
        a_pod("Failed", terminated(143), disrupted("PreemptionByScheduler", "default-scheduler: preempting")),
        F,
        Cause.PREEMPTED,
        "preempted by another pod: default-scheduler: preempting",
    ),
    (
        "preempted",
        a_pod("Succeeded", terminated(0, ended=5), a_condition("DisruptionTarget", "PreemptionByScheduler", at=8)),
        F,
        Cause.PREEMPTED,
        "preempted by another pod",
    ),
    (
        "succeeded",
        a_pod("Succeeded", terminated(0, ended=9), a_condition("DisruptionTarget", "PreemptionByScheduler", at=8)),
        OK,
        Cause.JOB,
        "",
    ),
    (
        "deleted",
        a_pod("Succeeded", terminated(0, ended=5), deleted=8),
        F,
        Cause.CLUSTER,
        "its pod was deleted at the cluster by somebody",
    ),
    (
        "evicted by the API",
        a_pod("Failed", terminated(143), disrupted("EvictionByEvictionAPI", "Eviction API: evicting")),
        F,
        Cause.PREEMPTED,
        "evicted from its node: Eviction API: evicting",
    ),
    (
        "node lost",
        a_pod("Failed", running(), disrupted("DeletionByPodGC", "PodGC: node no longer exists")),
        F,
        Cause.CLUSTER,
        "its node n1 was lost: PodGC: node no longer exists",
    ),
    (
        "node shut down",
        a_pod(
            "Failed",
            terminated(143),
            disrupted("TerminationByKubelet"),
            reason="Terminated",
            message="Pod was terminated in response to imminent node shutdown.",
        ),
        F,
        Cause.PREEMPTED,
        "its node n1 was shut down: Pod was terminated in response to imminent node shutdown",
    ),
    (
        "evicted by node pressure",
        a_pod(
            "Failed",
            terminated(137),
            disrupted("TerminationByKubelet"),
            reason="Evicted",
            message="The node was low on resource: memory. ",
        ),
        F,
        Cause.CLUSTER,
        "ended by the cluster: The node was low on resource: memory",
    ),
    (
        "evicted over its own limit",
        a_pod(
            "Failed",
            terminated(137),
            reason="Evicted",
            message="Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
        ),
        F,
        Cause.JOB,
        "evicted: Pod ephemeral local storage usage exceeds the total limit of containers 1Mi",
    ),
    (
        "deleted",
        a_pod("Failed", terminated(143, ended=5), deleted=8),
        F,
        Cause.CLUSTER,
        "its pod was deleted at the cluster by somebody",
    ),
    ("exit", a_pod("Failed", terminated(3, ended=20), deleted=8), F, Cause.JOB, "exit code 3"),
    (
        "init container failed",
        a_pod("Failed", waiting("PodInitializing"), init=terminated(1, message="no disk")),
        F,
        Cause.CLUSTER,
        "a container that prepares its pod failed: no disk",
    ),
    (
        "refused by its node",
        a_pod("Failed", reason="OutOfcpu", message="Pod was rejected: Node didn't have enough resource: cpu"),
        BACK,
        Cause.CLUSTER,
        "its node n1 refused it (OutOfcpu): Pod was rejected: Node didn't have enough resource: cpu",
    ),
    (
        "failed without an end of its container",
        a_pod("Failed"),
        F,
        Cause.CLUSTER,
        "its pod failed, and its node does not say how",
    ),
    (
        "command missing",
        a_pod("Failed", terminated(128, "StartError", 'exec: "nope": executable file not found in $PATH: unknown')),
        F,
        Cause.JOB,
        'its command could not be started: exec: "nope": executable file not found in $PATH: unknown',
    ),
    (
        "start error",
        a_pod("Failed", terminated(128, "StartError", "cgroup: device or resource busy")),
        F,
        Cause.CLUSTER,
        "its command could not be started: cgroup: device or resource busy",
    ),
    (
        "not started",
        a_pod("Failed", terminated(128, "StartError", CREATE_CUT)),
        BACK,
        Cause.CLUSTER,
        f"its command could not be started: {CREATE_CUT}",
    ),
    (
        "not started",
        a_pod("Failed", waiting("PodInitializing"), init=terminated(128, "StartError", CREATE_CUT)),
        BACK,
        Cause.CLUSTER,
        f"its command could not be started: {CREATE_CUT}",
    ),
    (
        "start error",  # another container of the pod has run
        a_pod("Failed", terminated(128, "StartError", CREATE_CUT), init=terminated(0, "Completed")),
        F,
        Cause.CLUSTER,
        f"its command could not be started: {CREATE_CUT}",
    ),
    (
        "command missing",
        a_pod("Failed", terminated(128, "StartError", f'{CREATE_CUT}: exec: "x": executable file not found')),
        F,
        Cause.JOB,
        f'its command could not be started: {CREATE_CUT}: exec: "x": executable file not found',
    ),
    (
        "start in doubt",
        a_pod("Failed", terminated(128, "StartError", START_CUT)),
        F,
        Cause.CLUSTER,
        f"its node n1 does not know whether its command began: {START_CUT}",
    ),
    (
        "end not known",
        a_pod("Failed", terminated(255, "Unknown")),
        F,
        Cause.CLUSTER,
        "its node n1 does not know how it ended",
    ),
    (
        "end not known",
        a_pod("Failed", terminated(137, "ContainerStatusUnknown", "The container could not be located")),
        F,
        Cause.CLUSTER,
        "its node n1 does not know how it ended",
    ),
    ("unknown phase", a_pod("Floating"), U, Cause.CLUSTER, "its pod is in the phase Floating"),
    ("runs", a_pod("Running", running()), R, Cause.JOB, ""),
    ("ends", a_pod("Running", terminated(0)), R, Cause.JOB, ""),
    ("runs", a_pod("Running", running(), deleted=5), R, Cause.JOB, ""),
    (
        "image name",
        a_pod("Pending", waiting("InvalidImageName", "couldn't parse A:B:C")),
        S,
        Cause.JOB,
        "its image name is not valid: couldn't parse A:B:C",
    ),
    (
        "image",
        a_pod("Pending", waiting("ErrImageNeverPull", "image is not present")),
        S,
        Cause.CLUSTER,
        "its image cannot be pulled: image is not present",
    ),
    (
        "image",
        a_pod("Pending", waiting("ImagePullBackOff", "Back-off"), uid="pulls"),
        S,
        Cause.CLUSTER,
        f"its image cannot be pulled: {PULL}",
    ),
    (
        "image",
        a_pod("Pending", waiting("PodInitializing"), init=waiting("ErrImagePull", "not found")),
        S,
        Cause.CLUSTER,
        "its image cannot be pulled: not found",
    ),
    (
        "container config",
        a_pod("Pending", waiting("CreateContainerConfigError", 'secret "db" not found')),
        S,
        Cause.CLUSTER,
        'its container cannot be created: secret "db" not found',
    ),
    (
        "mount",
        a_pod("Pending", waiting("ContainerCreating"), uid="mounts"),
        S,
        Cause.CLUSTER,
        'its pod cannot be prepared: MountVolume.SetUp failed: configmap "x" not found',
    ),
    ("starts", a_pod("Pending", waiting("ContainerCreating")), S, Cause.JOB, "starts on node n1"),
    (
        "starts",
        a_pod("Pending", waiting("ContainerCreating"), a_condition("PodReadyToStartContainers"), uid="mounts"),
        S,
        Cause.JOB,
        "starts on node n1",
    ),
    (
        "start gate",
        a_pod("Pending", None, a_condition("PodScheduled", "SchedulingGated", status="False"), node="", is_held=True),
        S,
        Cause.JOB,
        "waits for the agent to let its pod start",
    ),
    (
        "scheduling gate",
        a_pod("Pending", None, GATED, node="", gates=["other"]),
        S,
        Cause.JOB,
        "waits at a scheduling gate: waits for gates",
    ),
    ("unseen by the scheduler", a_pod("Pending", None, GATED, node=""), S, Cause.CLUSTER, "waits for the scheduler"),
    (
        "unschedulable",
        a_pod("Pending", None, UNSCHEDULED, node=""),
        S,
        Cause.CLUSTER,
        f"waits for a node: {NO_NODES[:-1]}",
    ),
    ("unseen by the scheduler", a_pod("Pending", node=""), S, Cause.CLUSTER, "waits for the scheduler"),
]
EVENTS: list[EventObject] = [
    an_event("Failed", PULL, uid="pulls"),
    an_event("Failed", "Error: ErrImagePull", uid="pulls"),
    an_event("FailedMount", 'MountVolume.SetUp failed: configmap "x" not found', uid="mounts"),
    an_event("FailedMount", "of another pod", uid="other", last=1),
]


@pytest.mark.parametrize(("rule", "pod", "seen", "cause", "reason"), CASES)
def test_pod(rule: str, pod: PodObject, seen: ObservedState, cause: Cause, reason: str) -> None:
    reading = read_pod(pod, EVENTS)
    assert (reading.rule.name, reading.seen, reading.rule.cause, reading.reason) == (rule, seen, cause, reason)


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("pod", "code", "number"),
    [
        (a_pod("Succeeded", terminated(0)), 0, None),
        (a_pod("Failed", terminated(3)), 3, None),
        (a_pod("Failed", terminated(137)), None, 9),
        (a_pod("Failed", terminated(137, "OOMKilled")), None, 9),
        (a_pod("Failed", terminated(5, "OOMKilled")), 5, None),
        (a_pod("Failed", terminated(128, "StartError")), None, None),
        (a_pod("Failed", terminated(137), reason="DeadlineExceeded"), None, None),
        (a_pod("Failed", terminated(143), disrupted("PreemptionByScheduler")), None, None),
    ],
)
def test_only_the_commands_own_end_has_a_code(pod: PodObject, code: int | None, number: int | None) -> None:
    reading = read_pod(pod)
    assert (reading.exit_code, reading.signal) == (code, number)


@pytest.mark.parametrize(("code", "rule"), [(3, "exit"), (143, "deleted"), (137, "deleted")])
def test_a_pod_removed_after_its_end_keeps_its_own_end(code: int, rule: str) -> None:
    """Kubernetes gives an ended pod no grace, and the kubelet's last delete has none either."""
    pod = a_pod("Failed", terminated(code, ended=20), deleted=8)
    pod = replace(pod, metadata=replace(pod.metadata, deletion_grace_period_seconds=0))
    assert read_pod(pod).rule.name == rule


@pytest.mark.parametrize(
    ("pod", "is_sure"),
    [
        (a_pod("Failed", terminated(3)), True),
        (a_pod("Failed", reason="OutOfcpu"), True),
        (a_pod("Failed", None, a_condition("DisruptionTarget", "PreemptionByScheduler"), node=""), True),
        (a_pod("Failed", running(), a_condition("DisruptionTarget", "DeletionByPodGC")), False),
        (a_pod("Failed", running(), deleted=100), False),
        (a_pod("Running", running()), False),
    ],
)
def test_an_end_is_sure_only_by_the_kubelets_word(pod: PodObject, is_sure: bool) -> None:
    assert read_pod(pod).is_sure is is_sure


def test_long_and_strange_text_becomes_one_line() -> None:
    pod = a_pod("Failed", terminated(128, "StartError", "a\n\tb\x1b[31m" + "x" * 5000))
    reason = read_pod(pod).reason
    assert "\n" not in reason
    assert "\x1b" not in reason
    assert len(reason) < 600
