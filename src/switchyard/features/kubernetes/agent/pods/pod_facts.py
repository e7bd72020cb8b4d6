"""The facts of a pod that the rules of pod_status.py ask for. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from switchyard.features.kubernetes.agent.namespaces.objects import (
    ContainerStatus,
    ContainerTerminated,
    ContainerWaiting,
    EventObject,
    ObjectCondition,
    PodObject,
)
from switchyard.features.kubernetes.agent.pods.labels import START_GATE, STARTED_ANNOTATION
from switchyard.model.jobspec.quantity import parse_bytes, show_bytes
from switchyard.model.rules.names import printable_line

WORDS_MAX = 500
SIGNAL_CODES = range(129, 193)  # 128 and the number of a signal; a command that uses such a code counts as killed
DELETE_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
START_ERRORS = frozenset({"StartError", "ContainerCannotRun"})
# What containerd says if it failed before it told the OCI runtime to start the command, and after that.
CREATE_ERROR = "failed to create containerd task"
DOUBTFUL_START = "failed to start containerd task"


@dataclass(frozen=True)
class PodFacts:
    """A pod and the events about it, as the rules ask for them."""

    pod: PodObject
    events: Sequence[EventObject] = ()

    @property
    def phase(self) -> str:
        return self.pod.status.phase

    @property
    def reason(self) -> str:
        return self.pod.status.reason

    @property
    def is_failed(self) -> bool:
        return self.pod.status.phase == "Failed"

    @property
    def node(self) -> str:
        return self.pod.spec.node_name

    @cached_property
    def terminated(self) -> ContainerTerminated | None:
        return self.pod.main.terminated

    @cached_property
    def waiting(self) -> ContainerWaiting:
        """Why the first container that waits does so; init containers come first."""
        for status in (*self.pod.status.init_container_statuses, *self.pod.status.container_statuses):
            if status.state.waiting is not None and status.state.waiting.reason != "PodInitializing":
                return status.state.waiting
        return ContainerWaiting()

    @cached_property
    def failed_init(self) -> ContainerTerminated | None:
        ends = (status.state.terminated for status in self.pod.status.init_container_statuses)
        return next((end for end in ends if end is not None and end.exit_code != 0), None)

    @cached_property
    def disruption(self) -> ObjectCondition | None:
        """Why the cluster ended the pod, if it did so before the command ended."""
        condition = self.pod.condition("DisruptionTarget")
        if condition is None or not condition.is_true:
            return None
        at, end = condition.last_transition_time, self.terminated.finished_at if self.terminated else None
        return None if at is not None and end is not None and end < at else condition

    @cached_property
    def unscheduled(self) -> ObjectCondition | None:
        condition = self.pod.condition("PodScheduled")
        if condition is None or condition.is_true:
            return None
        # After the last gate was lifted, the condition stays until the scheduler looks at the pod again.
        is_stale = condition.reason == "SchedulingGated" and not self.pod.spec.scheduling_gates
        return None if is_stale else condition

    @property
    def is_held(self) -> bool:
        """Whether the pod has the agent's scheduling gate: it never had a node, and nothing of it ran."""
        return is_held(self.pod)

    @property
    def is_prepared(self) -> bool:
        """Whether volumes and network are there, so that older events about them do not count."""
        condition = self.pod.condition("PodReadyToStartContainers")
        return condition is not None and condition.is_true

    @property
    def has_begun(self) -> bool:
        """Whether the command was started."""
        state = self.pod.main
        return state.running is not None or (state.terminated is not None and not self.is_start_error)

    @cached_property
    def released_s(self) -> float | None:
        """Since when the scheduler may place the pod: its gate was lifted, or it had none."""
        with suppress(ValueError):
            return datetime.fromisoformat(self.pod.metadata.annotations.get(STARTED_ANNOTATION, "")).timestamp()
        return seconds(self.pod.metadata.creation_timestamp)

    @property
    def is_start_error(self) -> bool:
        return self.terminated is not None and self.terminated.reason in START_ERRORS

    @property
    def start_error(self) -> ContainerTerminated | None:
        """The failed start of the command, or of a container that prepares the pod."""
        if self.is_start_error:
            return self.terminated
        return self.failed_init if self.failed_init is not None and self.failed_init.reason in START_ERRORS else None

    @property
    def is_start_doubtful(self) -> bool:
        """Whether the command may have begun although its start failed: a start that was given up may be carried out.

        The time of its start says nothing: containerd records it after an answer only.
        """
        return self.is_start_error and self.terminated is not None and DOUBTFUL_START in self.terminated.message

    @property
    def is_unbegun(self) -> bool:
        """Whether it is certain, from what the kubelet says of each container, that none of them ever started."""
        statuses = (*self.pod.status.init_container_statuses, *self.pod.status.container_statuses)
        return all(_is_unbegun(status) for status in statuses)

    @cached_property
    def doubtful_restarts(self) -> int:
        """How often the kubelet replaced the container of the command, if an earlier container may have begun it.

        `restartPolicy: Never` does not prevent that: a kubelet or a container runtime that is killed during the start
        finds a container that is created and does not run, and makes another. The kubelet shows the end of the last
        container only, so more than one restart is always in doubt.
        """
        status = self.pod.main_status
        earlier = status.last_state.terminated
        if status.restart_count == 1 and earlier is not None and _is_create_error(earlier):
            return 0
        return status.restart_count

    @property
    def is_over(self) -> bool:
        """Whether Kubernetes has written a final phase."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_deletion_first(self) -> bool:
        """Whether the pod was deleted before its command ended."""
        at = self.pod.metadata.deletion_timestamp
        if at is None:
            return False
        end = self.terminated.finished_at if self.terminated is not None else None
        if self.terminated is not None and self.pod.metadata.deletion_grace_period_seconds == 0:
            # The time of the first delete was replaced: by the kubelet's own delete after the end, or because the pod
            # had ended before. A command that was ended by a delete mostly dies of its signals.
            return split_code(self.terminated.exit_code)[1] in DELETE_SIGNALS
        asked_s = at.timestamp() - (self.pod.metadata.deletion_grace_period_seconds or 0)
        return end is None or end.timestamp() >= asked_s

    @property
    def memory_limit(self) -> str:
        limits = (row.resources.limits.get("memory", "") for row in self.pod.spec.containers[:1])
        try:
            return f" of {show_bytes(parse_bytes(text))}" if (text := next(limits, "")) else ""
        except ValueError:
            return ""

    def event(self, reasons: frozenset[str]) -> EventObject | None:
        """The last event with one of these reasons."""
        rows = [event for event in self.events if event.reason in reasons]
        return max(rows, key=lambda row: seconds(row.last_seen) or 0, default=None)

    def first_event_s(self, reasons: frozenset[str]) -> float | None:
        rows = [at for event in self.events if event.reason in reasons and (at := seconds(event.first_seen))]
        return min(rows, default=None)


def is_held(pod: PodObject) -> bool:
    """Whether a pod has the agent's scheduling gate."""
    return any(gate.name == START_GATE for gate in pod.spec.scheduling_gates)


def _is_unbegun(status: ContainerStatus) -> bool:
    end = status.state.terminated
    if status.state.running is not None or status.restart_count:
        return False
    return end is None or _is_create_error(end)


def _is_create_error(end: ContainerTerminated) -> bool:
    """Whether the container failed before its command was started."""
    return end.reason in START_ERRORS and end.message.startswith(CREATE_ERROR)


def split_code(code: int) -> tuple[int | None, int | None]:
    """Exit code or signal of a container's code."""
    return (None, code - 128) if code in SIGNAL_CODES else (code, None)


def tidy(text: str) -> str:
    """A text of Kubernetes on one line, without its end."""
    text = " ".join(printable_line(text).split())
    return f"{text[: WORDS_MAX - 1]}…" if len(text) > WORDS_MAX else text.rstrip(". ")


def seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
