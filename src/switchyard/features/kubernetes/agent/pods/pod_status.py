"""The table of what a pod's status means here. Pure.

The first rule of RULES that applies counts. Ends come first, then what a pod waits for. Words in braces are filled from
the pod: {message} is Kubernetes' own text.

A pod has ended when its kubelet says so: the container's state is `terminated`. The control plane may write the phase
Failed for a pod on a node that is away, whose container may still run; such an end is not sure (`is_sure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from switchyard.agent.backends import signal_name
from switchyard.features.kubernetes.agent.namespaces.objects import ContainerTerminated, EventObject, PodObject
from switchyard.features.kubernetes.agent.pods.pod_facts import PodFacts, seconds, split_code, tidy
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

WAITS, RUNS = ObservedState.SUBMITTED, ObservedState.RUNNING
ENDED, FAILED, RETURNED = ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.RETURNED
IMAGE_REASONS = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
CONFIG_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreStartHookError",
        "PostStartHookError",
    }
)
MOUNT_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume"})
IMAGE_EVENTS = frozenset({"Failed", "BackOff", "ErrImageNeverPull", "InspectFailed"})
# A command that is not in the image, or is none. Other start errors are the node's.
COMMAND_ERRORS = (
    "executable file not found",
    "no such file or directory",
    "permission denied",
    "exec format error",
    "not a directory",
    "is a directory",
    "argument list too long",
)
# The kubelet, or containerd after it was killed, does not know the container any more; the exit code is made up.
UNKNOWN_ENDS = frozenset({"ContainerStatusUnknown", "Unknown"})
NOT_STARTED = "not started"
NODE_LOST = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})


class WaitKind(StrEnum):
    """What a pod that does not run waits for: each has a bound of its own."""

    NODE = "node"
    IMAGE = "image"
    IMAGE_NAME = "image name"  # the image name is not valid: it does not get better
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class PodRule:
    """If `applies`, the pod is in this state. `words`: the reason, filled from the facts."""

    name: str
    applies: Callable[[PodFacts], bool]
    seen: ObservedState
    cause: Cause = Cause.JOB
    words: Callable[[PodFacts], str] = lambda _: ""
    wait: WaitKind | None = None
    has_exit: bool = False  # the exit code or signal is the command's own
    failure: FailureKind | None = None  # None: what the cause, the exit code and the signal say


def _killed_words(facts: PodFacts) -> str:
    assert facts.terminated is not None, "the rule asks for it"
    code, number = split_code(facts.terminated.exit_code)
    return f"killed by {signal_name(number)}" if number is not None else f"exit code {code}"


def _oom_words(facts: PodFacts) -> str:
    own = _killed_words(facts)
    is_killed = own.startswith("killed by SIGKILL")
    return f"out of memory: it used its limit{facts.memory_limit}" + ("" if is_killed else f"; {own}")


def _colon(prefix: str, text: str) -> str:
    text = tidy(text)
    return f"{prefix}: {text}" if text else prefix


def _disrupted(reasons: frozenset[str]) -> Callable[[PodFacts], bool]:
    return lambda facts: facts.is_over and facts.disruption is not None and facts.disruption.reason in reasons


def _is_command_error(end: ContainerTerminated | None) -> bool:
    return end is not None and any(text in end.message for text in COMMAND_ERRORS)


def _start_words(end: ContainerTerminated | None) -> str:
    return _colon("its command could not be started", end.message if end is not None else "")


def _event_words(prefix: str, reasons: frozenset[str]) -> Callable[[PodFacts], str]:
    def words(facts: PodFacts) -> str:
        event = facts.event(reasons)
        return _colon(prefix, event.message if event else "")

    return words


def _image_words(facts: PodFacts) -> str:
    """The text of the first failure names the cause; that of the back-off does not."""
    text = facts.waiting.message
    if facts.waiting.reason == "ImagePullBackOff":
        failed = [event.message for event in facts.events if event.reason == "Failed" and "pull image" in event.message]
        text = failed[-1] if failed else text
    return _colon("its image cannot be pulled", text or facts.waiting.reason)


RULES: tuple[PodRule, ...] = (
    # Ends. A pod that the cluster or somebody ended has failed, even if its command answered SIGTERM with exit code 0.
    PodRule(
        "deadline before the command",
        lambda f: f.is_failed and f.reason == "DeadlineExceeded" and f.pod.main.waiting is not None and f.is_unbegun,
        seen=FAILED,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda f: _colon(
            "its time limit passed before its command began", f.waiting.message or f.waiting.reason or f"on {f.node}"
        ),
    ),
    PodRule(
        "deadline",
        lambda f: f.is_failed and f.reason == "DeadlineExceeded",
        seen=FAILED,
        cause=Cause.JOB,
        failure=FailureKind.TIME_LIMIT,
        words=lambda _: "time limit reached",
    ),
    PodRule(
        "preempted",
        _disrupted(frozenset({"PreemptionByScheduler", "PreemptionByKubelet"})),
        seen=FAILED,
        cause=Cause.PREEMPTED,
        words=lambda f: _colon("preempted by another pod", f.disruption.message if f.disruption else ""),
    ),
    PodRule(
        "evicted by the API",
        _disrupted(frozenset({"EvictionByEvictionAPI"})),
        seen=FAILED,
        cause=Cause.PREEMPTED,
        words=lambda f: _colon("evicted from its node", f.disruption.message if f.disruption else ""),
    ),
    PodRule(
        "node lost",
        _disrupted(NODE_LOST),
        seen=FAILED,
        cause=Cause.CLUSTER,
        failure=FailureKind.NODE_LOST,
        words=lambda f: _colon(f"its node {f.node} was lost", f.disruption.message if f.disruption else ""),
    ),
    PodRule(
        "node shut down",
        lambda f: f.is_failed and f.reason in ("Terminated", "NodeShutdown", "Shutdown"),
        seen=FAILED,
        cause=Cause.PREEMPTED,
        words=lambda f: _colon(f"its node {f.node} was shut down", f.pod.status.message),
    ),
    PodRule(
        "evicted by node pressure",
        lambda f: f.is_over and f.disruption is not None,
        seen=FAILED,
        cause=Cause.CLUSTER,
        words=lambda f: _colon(
            "ended by the cluster", f.pod.status.message or (f.disruption.message if f.disruption else "")
        ),
    ),
    PodRule(
        "evicted over its own limit",
        lambda f: f.is_failed and f.reason == "Evicted",
        seen=FAILED,
        cause=Cause.JOB,
        failure=FailureKind.DISK,
        words=lambda f: _colon("evicted", f.pod.status.message),
    ),
    PodRule(
        "deleted",
        lambda f: f.is_over and f.is_deletion_first,
        seen=FAILED,
        cause=Cause.CLUSTER,
        words=lambda _: "its pod was deleted at the cluster by somebody",
    ),
    PodRule("succeeded", lambda f: f.phase == "Succeeded", ENDED, has_exit=True),
    PodRule(
        NOT_STARTED,
        lambda f: f.is_failed and f.is_unbegun and f.start_error is not None and not _is_command_error(f.start_error),
        seen=RETURNED,
        cause=Cause.CLUSTER,
        words=lambda f: _start_words(f.start_error),
    ),
    PodRule(
        "init container failed",
        lambda f: f.is_failed and f.terminated is None and f.failed_init is not None,
        seen=FAILED,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda f: _colon(
            "a container that prepares its pod failed", f.failed_init.message if f.failed_init else ""
        ),
    ),
    PodRule(
        "refused by its node",
        lambda f: f.is_failed and f.terminated is None and bool(f.reason),
        seen=RETURNED,
        cause=Cause.CLUSTER,
        words=lambda f: _colon(f"its node {f.node} refused it ({f.reason})", f.pod.status.message),
    ),
    PodRule(
        "failed without an end of its container",
        lambda f: f.is_failed and f.terminated is None,
        seen=FAILED,
        cause=Cause.CLUSTER,
        words=lambda f: _colon("its pod failed, and its node does not say how", f.pod.status.message),
    ),
    PodRule(
        "command missing",
        lambda f: f.is_failed and f.is_start_error and _is_command_error(f.terminated),
        seen=FAILED,
        cause=Cause.JOB,
        failure=FailureKind.START,
        words=lambda f: _start_words(f.terminated),
    ),
    PodRule(
        "start in doubt",
        lambda f: f.is_failed and f.is_start_doubtful,
        seen=FAILED,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda f: _colon(
            f"its node {f.node} does not know whether its command began", f.terminated.message if f.terminated else ""
        ),
    ),
    PodRule(
        "start error",
        lambda f: f.is_failed and f.is_start_error,
        seen=FAILED,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda f: _start_words(f.terminated),
    ),
    PodRule(
        "out of memory",
        lambda f: f.is_failed and f.terminated is not None and f.terminated.reason == "OOMKilled",
        seen=FAILED,
        cause=Cause.JOB,
        failure=FailureKind.OUT_OF_MEMORY,
        words=_oom_words,
        has_exit=True,
    ),
    PodRule(
        "end not known",
        lambda f: f.is_failed and f.terminated is not None and f.terminated.reason in UNKNOWN_ENDS,
        seen=FAILED,
        cause=Cause.CLUSTER,
        words=lambda f: f"its node {f.node} does not know how it ended",
    ),
    PodRule("exit", lambda f: f.is_failed, seen=FAILED, cause=Cause.JOB, words=_killed_words, has_exit=True),
    PodRule(
        "unknown phase",
        lambda f: f.phase not in ("", "Pending", "Running"),
        seen=ObservedState.UNKNOWN,
        cause=Cause.CLUSTER,
        words=lambda f: f"its pod is in the phase {f.phase[:40]}",
    ),
    # It runs, or is being ended.
    PodRule("runs", lambda f: f.pod.main.running is not None, RUNS),
    PodRule("ends", lambda f: f.terminated is not None, RUNS),
    # It waits.
    PodRule(
        "image name",
        lambda f: f.waiting.reason == "InvalidImageName",
        seen=WAITS,
        cause=Cause.JOB,
        failure=FailureKind.IMAGE,
        words=lambda f: _colon("its image name is not valid", f.waiting.message),
        wait=WaitKind.IMAGE_NAME,
    ),
    PodRule(
        "image",
        lambda f: f.waiting.reason in IMAGE_REASONS,
        seen=WAITS,
        cause=Cause.CLUSTER,
        failure=FailureKind.IMAGE,
        words=_image_words,
        wait=WaitKind.IMAGE,
    ),
    PodRule(
        "container config",
        lambda f: f.waiting.reason in CONFIG_REASONS,
        seen=WAITS,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda f: _colon("its container cannot be created", f.waiting.message),
        wait=WaitKind.CONFIG,
    ),
    PodRule(
        "mount",
        lambda f: bool(f.node) and not f.is_prepared and f.event(MOUNT_EVENTS) is not None,
        seen=WAITS,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=_event_words("its pod cannot be prepared", MOUNT_EVENTS),
        wait=WaitKind.CONFIG,
    ),
    PodRule("starts", lambda f: bool(f.node), WAITS, words=lambda f: f"starts on node {f.node}"),
    PodRule("start gate", lambda f: f.is_held, WAITS, words=lambda _: "waits for the agent to let its pod start"),
    PodRule(
        "scheduling gate",
        lambda f: f.unscheduled is not None and f.unscheduled.reason == "SchedulingGated",
        WAITS,
        words=lambda f: _colon("waits at a scheduling gate", f.unscheduled.message if f.unscheduled else ""),
    ),
    PodRule(
        "unschedulable",
        lambda f: f.unscheduled is not None,
        seen=WAITS,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda f: _colon("waits for a node", f.unscheduled.message if f.unscheduled else ""),
        wait=WaitKind.NODE,
    ),
    PodRule(
        "unseen by the scheduler",
        lambda _: True,
        seen=WAITS,
        cause=Cause.CLUSTER,
        failure=FailureKind.START,
        words=lambda _: "waits for the scheduler",
        wait=WaitKind.NODE,
    ),
)


@dataclass(frozen=True, slots=True)
class PodReading:
    """What a pod's status means."""

    facts: PodFacts
    rule: PodRule
    reason: str
    exit_code: int | None = None
    signal: int | None = None

    @property
    def seen(self) -> ObservedState:
        return self.rule.seen

    @property
    def is_over(self) -> bool:
        return self.seen in (ENDED, FAILED, RETURNED)

    @property
    def is_sure(self) -> bool:
        """Whether nothing of the pod runs: its kubelet said so, or it never had a node, or its node refused it."""
        facts = self.facts
        if not self.is_over:
            return False
        if facts.terminated is not None or not facts.node:
            return True
        return facts.disruption is None and not facts.is_deletion_first

    @property
    def is_unbegun(self) -> bool:
        """Whether it is certain that no container of the pod ever started."""
        return not self.facts.node or (self.seen is RETURNED and self.facts.is_unbegun)

    @property
    def began_s(self) -> float | None:
        if not self.facts.has_begun:
            return None
        state = self.facts.pod.main
        at = state.running.started_at if state.running else state.terminated.started_at if state.terminated else None
        return seconds(at)

    @property
    def ended_s(self) -> float | None:
        return seconds(self.facts.terminated.finished_at) if self.is_over and self.facts.terminated else None

    @property
    def waits_since_s(self) -> float | None:
        """Since when the pod has been waiting for what its rule says."""
        facts, status = self.facts, self.facts.pod.status
        created_s = seconds(facts.pod.metadata.creation_timestamp)
        if self.rule.wait is WaitKind.NODE:
            return facts.released_s
        reasons = IMAGE_EVENTS if self.rule.wait is WaitKind.IMAGE else MOUNT_EVENTS
        return facts.first_event_s(reasons) or seconds(status.start_time) or created_s


def read_pod(pod: PodObject, events: Sequence[EventObject] = ()) -> PodReading:
    """Read a pod's status. `events`: those about this pod, at least."""
    own = [event for event in events if event.involved_object.uid == pod.metadata.uid]
    facts = PodFacts(pod, own)
    rule = next(rule for rule in RULES if rule.applies(facts))
    code, number = (None, None)
    if rule.has_exit and rule.seen is ENDED:
        code = 0
    elif rule.has_exit and facts.terminated is not None:
        code, number = split_code(facts.terminated.exit_code)
    return PodReading(facts, rule, reason=rule.words(facts), exit_code=code, signal=number)
