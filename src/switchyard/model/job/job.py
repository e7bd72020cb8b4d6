"""A job: what a user asks for (JobRequest), the part that never changes (JobSpec), and the job as it stands (Job)."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from switchyard.errors import ImpossibleValue
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.cluster.idset import ARRAY_PATTERN, TEXT_CHARS_MAX, parse_array
from switchyard.model.cluster.native_grammars import DEVICE_PATTERN, GPU_TYPE, NATIVE_GRAMMARS
from switchyard.model.cluster.pod_part import PodPart
from switchyard.model.cluster.selection import NamedValues, Select, refuse_infinite
from switchyard.model.executions.execution import ExecutionConfig, QualityOfService
from switchyard.model.failures.asked_resources import AskedResources
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.files.files import JobFiles, OutputCounts, TaskOutputs
from switchyard.model.job.image_compatibility import CompatibilityList
from switchyard.model.job.retry import NO_RETRY, Retry
from switchyard.model.job.site_needs import SiteNeeds
from switchyard.model.job.spill import SpillTexts, parse_rules
from switchyard.model.jobspec.quantity import (
    AMOUNT_ABOVE_ZERO_PATTERN,
    AmountText,
    Duration,
    parse_amount,
    parse_bytes,
    parse_duration_s,
)
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.rules.names import LabelKey, LabelValue, Name, Title
from switchyard.model.rules.scope import LongName
from switchyard.model.rules.tokens import TokensOfJob
from switchyard.model.wire.schema import requires_field

REQUEST_BYTES_MAX = 8 * 2**20  # of a request as JSON
REQUEST_VALUES_MAX = 65_536  # in it; 10,000 words, as many variables and as many clusters are 60,000
COUNT_MAX = 10_000_000
Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)] | Annotated[float, Meta(ge=0, le=1e18)] | AmountText
Cores = (
    Annotated[int, Meta(ge=1, le=2**63 - 1)]
    | Annotated[float, Meta(gt=0, le=1e18)]
    | Annotated[AmountText, Meta(extra_json_schema={"pattern": AMOUNT_ABOVE_ZERO_PATTERN})]
)
# NUL cannot stand in an argument, a path or the environment of any process.
WORD_PATTERN = r"^[^\u0000]*$"
WORD_CHARS_MAX = 131_072
Word = Annotated[str, Meta(max_length=WORD_CHARS_MAX, pattern=WORD_PATTERN)]
ENV_MAX = 10_000
EnvKey = Annotated[str, Meta(max_length=256, pattern=r"^[^\u0000=\n]+(?!\n)$")]
# Of a command: the program.
PROGRAM_SCHEMA = {
    "prefixItems": [{"type": "string", "minLength": 1, "maxLength": WORD_CHARS_MAX, "pattern": WORD_PATTERN}]
}
PRIORITY_MAX = 1_000_000  # what the form allows; the rules of the job's scope allow less (attribute `job-priority`)
GpuType = Annotated[str, Meta(max_length=64, pattern=GPU_TYPE.schema["pattern"])]
# Units of a kind of device, and perhaps of a type: `nic`, `tpu:v5e:4`, `nvidia.com/mig-1g.5gb:2`.
DeviceText = Annotated[str, Meta(min_length=1, max_length=128, pattern=DEVICE_PATTERN)]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
DependencyText = Annotated[
    str, Meta(max_length=64, pattern=r"^([0-9A-Za-z]{6,26}|#[0-9]{1,6})(:(ok|any|notok))?(?!\n)$")
]


class State(StrEnum):
    """The state of a job. The last four are final."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"


class OnLost(StrEnum):
    """What to do with the job when its cluster falls silent."""

    WAIT = "wait"
    REQUEUE = "requeue"
    FAIL = "fail"


class Limits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The most a task may use; absent means the request."""

    cores: Amount | None = None
    gpus: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    memory: Amount | None = None
    ephemeral_storage: Amount | None = None

    def __post_init__(self) -> None:
        if self.cores is not None:
            parse_amount(self.cores)
        for size in (self.memory, self.ephemeral_storage):
            if size is not None:
                parse_bytes(size)


GPU_MEMORY_MIN = 10**6
ALTERNATIVES_MAX = 16  # sets of resources of one job, the first one counted: each is matched with every cluster
# Kinds of vertices that have a field of their own.
FIELDS_OF_KINDS = {
    "core": "cores",
    "memory": "memory",
    "storage": "ephemeral_storage",
    "node": "nodes",
    "task": "tasks",
}


class ResourcesPerTask(NamedTuple):
    """The resources of one task."""

    cores: int | float | str
    gpus: int
    memory: int | float | str
    ephemeral_storage: int | float | str


class Resources(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a job needs. `tasks` is the total; cores, gpus, memory and storage are per task; no `nodes` = any spread."""

    nodes: Count | None = None
    tasks: Count = 1
    # Not given: what the rules say; if they say nothing, one core and none of the rest.
    cores: Cores | None = None
    gpus: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    gpu_type: GpuType = ""  # by any of its names: `h100`, `NVIDIA-H100-80GB-HBM3`; with at least the memory it names
    gpu_memory: Amount | None = None  # of each GPU, at least
    memory: Amount | None = None
    ephemeral_storage: Amount | None = None
    devices: Annotated[tuple[DeviceText, ...], Meta(max_length=16)] = ()  # others: `fpga:u280:1`
    limits: Limits = Limits()
    time_limit: Duration | None = None

    def __post_init__(self) -> None:
        if self.cores is not None and parse_amount(self.cores) <= 0:
            raise ValueError("cores must be more than zero")
        if self.nodes is not None and self.nodes > self.tasks:
            raise ImpossibleValue(f"nodes ({self.nodes}) cannot exceed tasks ({self.tasks})")
        if self.time_limit is not None:
            parse_duration_s(self.time_limit)
        for size in (self.memory, self.ephemeral_storage):
            if size is not None:
                parse_bytes(size)
        if self.gpu_type or self.gpu_memory is not None or self.devices:
            self._check_devices()
        self._check_limits()

    def _check_devices(self) -> None:
        if self.gpu_memory is not None and parse_bytes(self.gpu_memory) < GPU_MEMORY_MIN:
            raise ImpossibleValue("gpu_memory is less than any GPU has; write it with its unit, as in 80GB")
        if (self.gpu_type or self.gpu_memory is not None) and not self.asked.gpus:
            raise ImpossibleValue("gpu_type and gpu_memory say which GPUs; say how many, as in `gpus: 1`")
        if any(re.fullmatch(r"gpu(:[0-9]+)?", text) for text in self.devices):
            raise ImpossibleValue("devices: GPUs of any type are `gpus`; here they have a type, as in gpu:h100:2")
        for text in self.devices:
            if (field := FIELDS_OF_KINDS.get(text.partition(":")[0])) is not None:
                raise ImpossibleValue(f"devices: {text[:80]} is no device; write it as `{field}`")

    @property
    def asked(self) -> ResourcesPerTask:
        """Per task: the request, else its own limit, else one core and nothing of the rest."""
        limits = self.limits
        return ResourcesPerTask(
            next(value for value in (self.cores, limits.cores, 1) if value is not None),
            next(value for value in (self.gpus, limits.gpus, 0) if value is not None),
            next(value for value in (self.memory, limits.memory, 0) if value is not None),
            next(value for value in (self.ephemeral_storage, limits.ephemeral_storage, 0) if value is not None),
        )

    def _check_limits(self) -> None:
        pairs = (
            ("cores", self.cores, self.limits.cores),
            ("gpus", self.gpus, self.limits.gpus),
            ("memory", self.memory, self.limits.memory),
            ("ephemeral_storage", self.ephemeral_storage, self.limits.ephemeral_storage),
        )
        for name, request, limit in pairs:
            if limit is not None and request is not None and parse_amount(limit) < parse_amount(request):
                raise ImpossibleValue(f"limits.{name} ({limit}) is below the request ({request})")
        if None not in (self.gpus, self.limits.gpus) and self.gpus != self.limits.gpus:
            # A device is given or not: Kubernetes refuses a limit of such a resource that is not the request.
            raise ImpossibleValue(f"limits.gpus ({self.limits.gpus}) must be the request ({self.gpus})")


NO_RESOURCES = Resources()

NativeOption = Annotated[
    str, Meta(max_length=1024, pattern=r"^--[a-z][a-z0-9-]*(=[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*)?(?!\n)$")
]


License = Annotated[str, Meta(min_length=1, extra_json_schema=NATIVE_GRAMMARS["licenses"].schema)]


class Native(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Further options for a batch system. Clusters without a batch system ignore them."""

    account: Annotated[str, Meta(extra_json_schema=NATIVE_GRAMMARS["account"].schema)] = ""  # whom hours are charged to
    qos: Annotated[str, Meta(extra_json_schema=NATIVE_GRAMMARS["qos"].schema)] = ""
    reservation: Annotated[str, Meta(extra_json_schema=NATIVE_GRAMMARS["reservation"].schema)] = ""
    # Features of nodes, in the batch system's own words: `intel&avx512`.
    constraint: Annotated[str, Meta(extra_json_schema=NATIVE_GRAMMARS["constraint"].schema)] = ""
    licenses: Annotated[list[License], Meta(max_length=100)] = []  # `matlab:2`
    gpu_type: Annotated[str, Meta(extra_json_schema=NATIVE_GRAMMARS["gpu_type"].schema)] = ""
    exclusive: bool = False  # whole nodes
    options: Annotated[list[NativeOption], Meta(max_length=100)] = []  # further ones, where the site allows them


def native_problem(native: Native | None) -> str:
    """Return the first field of `native` that breaks its grammar, and why. Empty: all fields are right."""
    for name, grammar in NATIVE_GRAMMARS.items() if native is not None else ():
        value = getattr(native, name)
        for word in value if isinstance(value, list) else [value] if value else []:
            if problem := grammar.problem(word):
                return f"native.{name}: {problem}"
    return ""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What runs and what it needs. Stored once, by hash; never changes."""

    SCHEMA: ClassVar[dict[str, Any]] = requires_field("site", "files")
    command: Annotated[list[Word], Meta(min_length=1, max_length=10_000, extra_json_schema=PROGRAM_SCHEMA)]
    env: Annotated[dict[EnvKey, Word], Meta(max_length=ENV_MAX)] = {}
    cwd: Word | None = None
    image: Annotated[str, Meta(max_length=1024, pattern=r"^[^\u0000-\u0020]+(?!\n)$")] | None = None
    resources: Resources = Resources()
    on_lost: OnLost = OnLost.WAIT
    lost_after: Duration | None = None
    retry: Retry = NO_RETRY
    # What the image needs of the system of the nodes that run it.
    compatibility: CompatibilityList = []
    # Needs that `resources` cannot say, as a jobspec says them: `version`, `resources`, and what bounds them.
    demand: dict[str, Any] | None = None
    task_type: Name = "default"  # what plugin overrides go by
    execution: ExecutionConfig | None = None  # its own words; in an accepted job: what holds
    tokens: TokensOfJob = {}  # token pool → how many it holds from its assignment to its end
    native: Native | None = None
    files: JobFiles | None = None  # go to the cluster before the start, and come back at the end
    site: SiteNeeds | None = None  # what the cluster's site file gives to it: a place for data, and secrets
    pod: PodPart | None = None  # further parts of its pod; only Kubernetes clusters take it
    # Further whole sets, in order of preference after `resources`: the job runs with one of all these sets.
    alternatives: Annotated[tuple[Resources, ...], Meta(max_length=ALTERNATIVES_MAX - 1)] = ()

    def __post_init__(self) -> None:
        if not self.command[0]:
            raise ValueError("the command's first word is empty")
        if self.native is not None and self.resources.gpu_type and self.native.gpu_type:
            raise ImpossibleValue("gpu_type is there twice; leave out the one of `native`")
        if self.site is not None and self.files is None:
            raise ValueError("site: what a site gives is put into the folder of the job's files, so give `files`, too")
        if self.lost_after is not None:
            parse_duration_s(self.lost_after)
        if self.alternatives:
            self._check_alternatives()

    def _check_alternatives(self) -> None:
        """`resources` is the first alternative, so the next one is number 2."""
        for field_name, value in (("demand", self.demand), ("pod", self.pod)):
            if value is not None:
                raise ImpossibleValue(
                    f"alternatives are sets of plain resources, and `{field_name}` says what is needed in its own way; "
                    "leave one of both out"
                )
        if self.native is not None and self.native.gpu_type:
            raise ImpossibleValue("native.gpu_type would hold for all alternatives; write gpu_type in each of them")
        if len(self.env) >= ENV_MAX:
            raise ImpossibleValue(f"env: a job with alternatives is told which it got, so it has less than {ENV_MAX}")
        numbers: dict[Resources, int] = {}
        for number, resources in enumerate((self.resources, *self.alternatives), 1):
            if resources == NO_RESOURCES:
                place = "resources" if number == 1 else f"alternatives: number {number}"
                raise ImpossibleValue(
                    f"{place} is empty; say what it asks for, as in `cores: 1` (number 1 is `resources`)"
                )
            if (same := numbers.setdefault(resources, number)) != number:
                raise ImpossibleValue(f"alternatives: number {number} is the same as number {same} (`resources` is 1)")


class ClusterToken(Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster or a group, by its name, and its submit token."""

    name: Name
    token: Annotated[str, Meta(min_length=1, max_length=512)]


class JobRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a submit. Not given: project `default`, domain `development`."""

    SCHEMA: ClassVar[dict[str, Any]] = requires_field("launch_plan", "workflow")
    spec: JobSpec
    name: Title | None = None
    project: Name = "default"
    domain: Name = "development"
    workflow: LongName | None = None
    launch_plan: LongName | None = None
    priority: Priority = 0
    labels: Annotated[dict[LabelKey, LabelValue], Meta(max_length=64)] = {}
    cluster: Name | None = None
    # The clusters where it may run, each with its token. A token that is not valid denies the request.
    clusters: Annotated[list[ClusterToken], Meta(max_length=10_000)] = []
    # Tokens that the user has saved: each opens its cluster, and none bounds where the job may run. An invalid one
    # opens nothing, and is named in the answer.
    submit_tokens: Annotated[list[ClusterToken], Meta(max_length=10_000)] = []
    pool: Name | None = None  # bounds where it may go
    cluster_label: Name | None = None  # narrows it
    tags: Annotated[list[Name], Meta(max_length=100)] = []  # of queues
    quality_of_service: QualityOfService | None = None
    # `0-999%50`: a task for each index, at most 50 of them at once.
    array: Annotated[str, Meta(max_length=TEXT_CHARS_MAX, extra_json_schema={"pattern": ARRAY_PATTERN})] | None = None
    together: bool = False  # all tasks of the array run on one cluster; else on every eligible cluster that has room
    # `ID`, `ID:ok`, `ID:any` or `ID:notok`: begin after that job's end. In a bulk request `#3` is its fourth job.
    after: Annotated[list[DependencyText], Meta(max_length=1000)] = []
    hold: bool = False
    expires_after: Duration | None = None  # not begun by then: it fails
    match_engine: Name | None = None  # who answers whether it fits; none: the server's own choice
    select: Select | None = None  # how one is chosen of those that can run it; none: the server's own choice
    parameters: NamedValues = {}  # what an algorithm may reckon with
    spill: SpillTexts = []  # `after 10m try pool burst`, `reject after 24h`: where it waits for long

    def __post_init__(self) -> None:
        if self.spec.native is not None and (problem := native_problem(self.spec.native)):
            raise ValueError(f"spec.{problem}")
        refuse_infinite(self.parameters)
        if self.spill:
            parse_rules(self.spill)
        if self.array is not None:
            parse_array(self.array)
        if self.expires_after is not None:
            parse_duration_s(self.expires_after)
        if self.launch_plan is not None and self.workflow is None:
            raise ValueError("a launch plan belongs to a workflow: give that, too")


class TaskCounts(Struct, frozen=True, omit_defaults=True):
    """The tasks of an array, counted by state."""

    total: int
    waiting: int = 0
    live: int = 0
    ok: int = 0
    failed: int = 0
    cancelled: int = 0


class CancelledTasks(Struct, frozen=True, omit_defaults=True):
    """What a cancel of an array, or of some of its tasks, did."""

    waiting: int = 0  # no cluster had them: cancelled at once
    live: int = 0  # a cluster has them: cancelled once it confirms
    ended: int = 0  # had ended before


class TaskAttempt(Struct, frozen=True, omit_defaults=True):
    """An attempt that did not end its task: the task was tried again, or will be.

    `ended`: failed, lost, preempted, refused (by the cluster, before the start) or returned.
    """

    fence: int
    cluster: str | None = None
    ended: str = ""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


class Task(Struct, frozen=True, omit_defaults=True):
    """One task of an array."""

    index: int
    state: State
    exit_code: int | None = None
    signal: int | None = None
    fence: int = 0
    cluster: str | None = None
    cancel_requested: bool = False
    reason: str = ""  # of an end that was no success, or of the last one before it is tried again
    attempts: int = 0  # how often a cluster has leased it
    earlier: list[TaskAttempt] = []  # attempts before the present one, oldest first; of many, the last ten
    is_unbegun: bool = False  # it failed, and nothing of its last attempt ran: no output files come from that attempt
    outputs: TaskOutputs | None = None  # none: its cluster has not spoken of output files of the last attempt
    alternative: int | None = None  # of a job with alternatives: the number, from 1, of the set it was leased with


class Usage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The resources that an attempt used, as far as its cluster reports them."""

    elapsed_s: Annotated[int, Meta(ge=0, le=2**40)] = 0
    memory_bytes_max: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None  # of the task or node that used most
    nodes: Annotated[str, Meta(max_length=4096)] = ""  # by name, as the cluster writes them
    allocated: GivenResources | None = None  # what the cluster gave to it

    @property
    def differences(self) -> str:
        """Where the cluster gave less or other than the job asked for; empty: nowhere that is known."""
        return "" if self.allocated is None else "; ".join(self.allocated.differs)


class JobAttempt(Struct, frozen=True, omit_defaults=True):
    """An attempt of a job that is no array, after which the job went on.

    `ended`: failed, lost, preempted, refused (by the cluster, before the start), returned, or moved. `asked`: what it
    asked for, where not all attempts ask for the same.
    """

    attempt: int
    fence: int
    cluster: str | None = None
    ended: str = ""
    failure: FailureKind | None = None
    reason: str = ""
    asked: AskedResources | None = None
    started_us: int | None = None
    ended_us: int | None = None


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as the API shows it. Times are µs since 1970, UTC."""

    id: str
    name: str
    owner: str
    project: str
    domain: str
    workflow: str | None = None
    launch_plan: str | None = None
    state: State
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    spec: JobSpec | msgspec.Raw | None = None
    is_env_hidden: bool = False  # the spec has an environment or other secrets, shown to owner and operators alone
    cluster: str | None = None
    attempt: int = 0
    fence: int = 0
    reason: str = ""
    cancel_requested: bool = False
    exit_code: int | None = None
    signal: int | None = None
    failure: FailureKind | None = None  # of a FAILED one: how its last attempt failed
    attempts: list[JobAttempt] = []  # those before the present one; not in lists, and of many the last 100
    native_id: str | None = None
    usage: Usage | None = None  # where its cluster says; of a running one without times
    created_us: int
    assigned_us: int | None = None
    leased_us: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    is_held: bool = False
    wake_us: int | None = None
    expires_us: int | None = None
    late_us: int | None = None  # its queueing budget was spent before it began; when that was told
    tries: int = 0
    retry_of: str | None = None
    array: str | None = None
    tasks: TaskCounts | None = None
    together: bool = False
    cancelled_tasks: CancelledTasks | None = None  # in the answer to a cancel of an array
    tasks_by_cluster: dict[str, int] = {}  # where the tasks of an array run or ran; not in lists
    pool: str | None = None
    cluster_label: str | None = None
    queue: str = ""
    tags: list[str] = []
    spill: list[str] = []
    tokens: dict[str, int] = {}  # what it holds while it lives: its own words, and those of rules
    policy: JobPolicy | msgspec.Raw | None = None  # not in lists
    outputs: OutputCounts | None = None  # of a job with `files.out`; not in lists
    # Of a job with alternatives: the number, from 1, of the set that it has at its cluster. `resources` is number 1.
    alternative: int | None = None
