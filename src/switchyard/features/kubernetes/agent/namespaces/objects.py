"""What the agent reads of Jobs, pods and events, as frozen values. Fields that it does not use are ignored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

from msgspec import Struct

from switchyard.features.kubernetes.agent.pods.labels import INDEX_LABEL, JOB_NAME_LABEL
from switchyard.model.cluster.pod_part import MAIN_CONTAINER


class OwnerReference(Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""


class ObjectMeta(Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []


class ObjectCondition(Struct, frozen=True, rename="camel"):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


class JobObjectSpec(Struct, frozen=True, rename="camel"):
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool = False


class JobObjectStatus(Struct, frozen=True, rename="camel"):
    conditions: list[ObjectCondition] = []
    start_time: datetime | None = None
    completion_time: datetime | None = None
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str = ""


class JobObject(Struct, frozen=True, rename="camel"):
    """A Job of batch/v1."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobObjectSpec = JobObjectSpec()
    status: JobObjectStatus = JobObjectStatus()

    def condition(self, kind: str) -> ObjectCondition | None:
        """The condition of this type, if it is True."""
        return next((item for item in self.status.conditions if item.type == kind and item.is_true), None)

    def has_ended(self, index: int | None = None) -> bool:
        """Whether the Job has ended, or this index of it."""
        if self.condition("Complete") or self.condition("Failed"):
            return True
        indexes = self.status.completed_indexes, self.status.failed_indexes
        return index is not None and any(has_index(text, index) for text in indexes)


class ResourceAmounts(Struct, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class PodContainer(Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str = ""
    resources: ResourceAmounts = ResourceAmounts()
    restart_policy: str = ""  # `Always` in an init container: a sidecar


class SchedulingGate(Struct, frozen=True, gc=False):
    name: str = ""


class PodObjectSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    scheduling_gates: list[SchedulingGate] = []
    containers: list[PodContainer] = []
    init_containers: list[PodContainer] = []
    overhead: dict[str, str] = {}
    priority: int | None = None


class ContainerWaiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerRunning(Struct, frozen=True, rename="camel"):
    started_at: datetime | None = None


class ContainerTerminated(Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(Struct, frozen=True):
    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()  # of the container before this one, if the kubelet replaced it
    image: str = ""
    restart_count: int = 0


class PodObjectStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[ObjectCondition] = []
    start_time: datetime | None = None
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class PodObject(Struct, frozen=True, rename="camel"):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodObjectSpec = PodObjectSpec()
    status: PodObjectStatus = PodObjectStatus()

    @property
    def job_name(self) -> str:
        return self.metadata.labels.get(JOB_NAME_LABEL, "")

    @property
    def index(self) -> int | None:
        """The completion index; None: its Job is not Indexed."""
        text = self.metadata.labels.get(INDEX_LABEL) or self.metadata.annotations.get(INDEX_LABEL) or ""
        return int(text) if text.isdecimal() else None

    @property
    def main(self) -> ContainerState:
        """The state of the container that runs the command."""
        return self.main_status.state

    @property
    def main_status(self) -> ContainerStatus:
        """What the kubelet says of the container that runs the command, and of the one that it replaced."""
        return next((item for item in self.status.container_statuses if item.name == MAIN_CONTAINER), _NO_STATUS)

    def condition(self, kind: str) -> ObjectCondition | None:
        """The condition of this type, True or not."""
        return next((item for item in self.status.conditions if item.type == kind), None)


class EventTarget(Struct, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(Struct, frozen=True, rename="camel"):
    last_observed_time: datetime | None = None


class EventObject(Struct, frozen=True, rename="camel"):
    """An event about a Job or a pod."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: EventTarget = EventTarget()
    type: str = ""
    reason: str = ""
    message: str = ""
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None

    @property
    def last_seen(self) -> datetime | None:
        repeated = self.series.last_observed_time if self.series else None
        return repeated or self.last_timestamp or self.event_time or self.metadata.creation_timestamp

    @property
    def first_seen(self) -> datetime | None:
        return self.first_timestamp or self.event_time or self.metadata.creation_timestamp


_NO_STATUS = ContainerStatus()


def parse_indexes(text: str) -> Iterator[range]:
    """The runs of `completedIndexes`, such as `0,2-5,7`."""
    for part in text.split(",") if text else ():
        lo, _, hi = part.partition("-")
        yield range(int(lo), int(hi or lo) + 1)


@lru_cache(maxsize=256)
def indexes_of(text: str) -> frozenset[int]:
    """All indexes of such a text. Asked for every task of an array, so the last texts are kept."""
    return frozenset(index for run in parse_indexes(text) for index in run)


def has_index(text: str, index: int) -> bool:
    return index in indexes_of(text)
