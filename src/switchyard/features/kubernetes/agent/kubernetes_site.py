"""The section `kubernetes` of the site file: how to reach one cluster, and what its jobs get and may ask for.

A value that Kubernetes would refuse for every job is refused when the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from switchyard.agent.site.site import ClusterSection, Site
from switchyard.agent.site.site_types import AbsolutePath, Amount, LongSeconds, ShortSeconds
from switchyard.features.kubernetes.agent.cluster_resources_site import ClusterResourcesSite
from switchyard.features.kubernetes.agent.kubernetes_names import (
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    NAMESPACE_PATTERN,
    OBJECT_NAME_PATTERN,
)
from switchyard.model.job.job import DeviceText
from switchyard.model.job.site_needs import RoleName
from switchyard.model.jobspec.quantity import parse_bytes
from switchyard.sections import section_of

SITE_LIST_MAX = 100
OUTPUT_BYTES_MIN = 2**20
NAMESPACE_TEMPLATE = "{{ project }}-{{ domain }}"  # the default of the server's `namespace_mapping`, too
VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]+)\s*\}\}")
MOUNT_PATH = r"^/[^\u0000-\u001f:]*(?!\n)$"

# Places of a pod template on which "never twice", the job's identity and its time limit depend. Neither a job nor the
# site changes them.
AGENT_PLACES = (
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "finalizers"),
    ("metadata", "ownerReferences"),
    ("spec", "restartPolicy"),
    ("spec", "activeDeadlineSeconds"),
    ("spec", "terminationGracePeriodSeconds"),
    ("spec", "hostname"),
    ("spec", "subdomain"),
)
ObjectName = Annotated[str, Meta(max_length=253, pattern=rf"^({OBJECT_NAME_PATTERN})(?!\n)$")]
OptionalName = Annotated[str, Meta(max_length=253, pattern=rf"^({OBJECT_NAME_PATTERN})?(?!\n)$")]
LabelName = Annotated[str, Meta(min_length=1, max_length=317, pattern=rf"^({LABEL_KEY_PATTERN})(?!\n)$")]
LabelText = Annotated[str, Meta(max_length=63, pattern=rf"^({LABEL_VALUE_PATTERN})(?!\n)$")]
Pattern = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\u0000-\u0020]+(?!\n)$")]
# A JSON pointer into the pod template; `*` stands for one key or index.
PatchPath = Annotated[str, Meta(min_length=2, max_length=1024, pattern=r"^(/[^/\u0000-\u001f]+)+(?!\n)$")]
Endpoint = Annotated[str, Meta(max_length=2048, pattern=r"^(https?://[^\u0000-\u0020]+)?(?!\n)$")]
Uid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
GraceSeconds = Annotated[int, Meta(ge=0, le=86_400)]
KeepSeconds = Annotated[int, Meta(ge=60, le=366 * 86_400)]


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A taint of nodes that jobs tolerate, in Kubernetes' words. No key: all taints."""

    key: LabelName | None = None
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: LabelText = ""
    effect: TaintEffect | None = None

    def __post_init__(self) -> None:
        if self.key is None and self.operator is not TolerationOperator.EXISTS:
            raise ValueError("a toleration without a key needs `operator: Exists`")
        if self.value and self.operator is TolerationOperator.EXISTS:
            raise ValueError("a toleration with `operator: Exists` has no value")


class NodeChoice(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which nodes some jobs need, by their labels, and which taints they tolerate."""

    node_selector: Annotated[dict[LabelName, LabelText], Meta(max_length=SITE_LIST_MAX)] = {}
    tolerations: Annotated[list[Toleration], Meta(max_length=SITE_LIST_MAX)] = []


class PriorityClass(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The PriorityClass of jobs whose priority is at least `min`."""

    name: ObjectName
    min: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]


class ScratchVolume(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An empty folder that every pod gets at `path`, removed with the pod.

    With `storage_class` it is a volume of that class, and `size` is needed. With `memory` it is a tmpfs.
    """

    path: Annotated[str, Meta(min_length=2, max_length=1024, pattern=MOUNT_PATH)]
    size: Amount | None = None
    memory: bool = False
    storage_class: OptionalName = ""

    def __post_init__(self) -> None:
        if self.size is not None:
            try:
                parse_bytes(self.size)
            except ValueError as exc:
                raise ValueError(f"size: {exc}") from exc
        if self.storage_class and (self.size is None or self.memory):
            raise ValueError("a scratch volume with a storage_class needs a size, and is not in memory")


class PodSecurity(StrEnum):
    """What the containers of a job may do, in the words of Kubernetes' Pod Security Standards.

    BASELINE runs the image as its own user, which may be root, without new privileges. RESTRICTED refuses root and
    takes all capabilities away. PRIVILEGED leaves everything to the image, the template and the cluster.
    """

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


class KubernetesSite(ClusterSection, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to reach one Kubernetes cluster, and what its pods get.

    Without `kubeconfig` and `endpoint` the agent runs in the cluster and uses its service account.
    """

    kubeconfig: AbsolutePath | None = None
    context: Annotated[str, Meta(max_length=1024)] = ""  # of the kubeconfig; empty: its current context
    endpoint: Endpoint = ""  # `https://10.0.0.1:6443`, with `token_path` and `cert_path`
    token_path: AbsolutePath | None = None
    cert_path: AbsolutePath | None = None  # certificates that sign the API server's
    timeout_s: ShortSeconds = 30.0  # of one call

    namespace: Annotated[str, Meta(min_length=1, max_length=256)] = NAMESPACE_TEMPLATE  # of a job's project and domain
    image: Annotated[str, Meta(max_length=1024, pattern=r"^[^\u0000-\u0020]*(?!\n)$")] = ""  # for jobs that name none
    service_account: OptionalName = ""  # for jobs that name none; empty: the namespace's default, without a token
    service_accounts: Annotated[list[Pattern], Meta(max_length=SITE_LIST_MAX)] = field(
        default_factory=lambda: ["*"]
    )  # which ones a job may name
    # By an IAM role, the service account that has it: a template of cluster resources makes it, with the annotation.
    iam_roles: Annotated[dict[RoleName, ObjectName], Meta(max_length=SITE_LIST_MAX)] = {}
    pull_secrets: Annotated[list[ObjectName], Meta(max_length=SITE_LIST_MAX)] = []
    priority_classes: Annotated[list[PriorityClass], Meta(max_length=SITE_LIST_MAX)] = []
    security: PodSecurity = PodSecurity.BASELINE
    run_as_user: Uid | None = None
    run_as_group: Uid | None = None
    fs_group: Uid | None = None

    node_selector: Annotated[dict[LabelName, LabelText], Meta(max_length=SITE_LIST_MAX)] = {}
    tolerations: Annotated[list[Toleration], Meta(max_length=SITE_LIST_MAX)] = []
    interruptible: NodeChoice = NodeChoice()  # jobs that bear to be preempted, besides `node_selector`
    uninterruptible: NodeChoice = NodeChoice()  # all other jobs
    gpu_resource: LabelName = "nvidia.com/gpu"  # what the device plugin calls a GPU
    gpu_type_label: LabelName = "nvidia.com/gpu.product"  # the label that tells the type of a node's GPUs
    # Other devices, and what their plugins call them: `{"fpga:u280": xilinx.com/fpga-u280}`.
    devices: Annotated[dict[DeviceText, LabelName], Meta(max_length=SITE_LIST_MAX)] = {}
    scratch: Annotated[list[ScratchVolume], Meta(max_length=SITE_LIST_MAX)] = []
    # A volume in Kubernetes' words that is `files: {folder}` for the agent, e.g. `{nfs: {server: …, path: …}}`. Jobs
    # with files need it.
    files_volume: dict[str, Any] | None = None

    kueue: bool = False  # Jobs begin suspended, with the label of a queue of Kueue
    queue: OptionalName = ""  # of Kueue, for jobs whose queue has no name here (`queues`)

    # Merged into every pod template. Lists of named things, e.g. containers, are merged by name; `main` is the job's.
    template: dict[str, Any] = {}
    # Places of the pod template that a job may set (`--pod=/spec/runtimeClassName=gvisor`), with all that is below.
    patch_paths: Annotated[list[PatchPath], Meta(max_length=SITE_LIST_MAX)] = []
    # Keys with a domain that a job may give labels and annotations; those of `app.kubernetes.io` are free.
    allow_keys: Annotated[list[Pattern], Meta(max_length=SITE_LIST_MAX)] = []

    cluster_resources: ClusterResourcesSite = ClusterResourcesSite()

    output_max: Amount = "1GiB"  # of one pod's output, on the agent's disk; the middle of more is dropped
    array_jobs: bool = False  # tasks of an array are a Job each, for images without /bin/sh
    gang_service: OptionalName = "switchyard-gangs"  # headless Service that gives the pods of a gang their names
    gang_max: Annotated[int, Meta(ge=1, le=10_000)] = 1000  # pods of one gang

    # How long a pod may wait before its job fails: for its image; for a mount, Secret or ConfigMap that is missing; for
    # the other pods of its gang, once one of them runs; for a node (none: no bound).
    image_wait_s: LongSeconds = 300.0
    config_wait_s: LongSeconds = 300.0
    gang_wait_s: LongSeconds = 600.0
    start_wait_s: LongSeconds | None = None
    # A pod that vanished from a node of which nothing is known counts as gone after this time.
    gone_wait_s: LongSeconds = 300.0
    grace_s: GraceSeconds = 30  # between SIGTERM and SIGKILL
    keep_s: KeepSeconds = 30 * 86_400  # how long Kubernetes keeps an ended Job that no agent removes

    def check_site(self, site: Site) -> None:
        if self.files_volume is not None and site.files.folder is None:
            raise ValueError("kubernetes.files_volume: say with `files: {folder}` where the agent sees this volume")

    def __post_init__(self) -> None:
        _check_output_max(self.output_max)
        unknown = sorted(set(VARIABLE.findall(self.namespace)) - {"project", "domain"})
        if unknown:
            raise ValueError(f"namespace: {unknown[0]!r} is unknown; known are project and domain")
        sample = VARIABLE.sub("a", self.namespace)
        if not re.fullmatch(NAMESPACE_PATTERN, sample) or len(sample) > 63:
            raise ValueError("namespace: a-z, 0-9 and - inside, at most 63 characters, e.g. {{ project }}-{{ domain }}")
        if self.kubeconfig is not None and self.endpoint:
            raise ValueError("give `kubeconfig` or `endpoint`, not both")
        if self.context and self.kubeconfig is None:
            raise ValueError("context: only a kubeconfig has contexts")
        if self.endpoint and self.token_path is None:
            raise ValueError("with `endpoint`, say with `token_path` which file has the token")
        if not self.endpoint and (self.token_path is not None or self.cert_path is not None):
            raise ValueError("token_path and cert_path belong to an `endpoint`")
        if self.queue and not self.kueue:
            raise ValueError("queue: only with `kueue: true`")
        if strange := sorted(set(self.template) - {"metadata", "spec"}):
            raise ValueError(f"template: a pod template has metadata and spec, not {strange[0]!r}")
        for part, name in AGENT_PLACES:
            if name in (self.template.get(part) or {}):
                raise ValueError(f"template: /{part}/{name} of a pod is set by the agent itself")
        for path in sorted({volume.path for volume in self.scratch}):
            if sum(volume.path == path for volume in self.scratch) > 1:
                raise ValueError(f"scratch: {path} is there twice")

    @property
    def role_accounts(self) -> Mapping[str, str]:
        return self.iam_roles

    @property
    def fixed_namespace(self) -> str:
        """The namespace of all jobs; empty: it depends on the job's project or domain."""
        return "" if VARIABLE.search(self.namespace) else self.namespace

    def namespace_of(self, *, project: str, domain: str) -> str:
        """The namespace of a project's jobs. It may be a name that Kubernetes refuses."""
        return VARIABLE.sub(lambda match: {"project": project, "domain": domain}[match[1]], self.namespace)


def _check_output_max(amount: Amount) -> None:
    try:
        is_enough = parse_bytes(amount) >= OUTPUT_BYTES_MIN
    except ValueError as exc:
        raise ValueError(f"output_max: {exc}") from exc
    if not is_enough:
        raise ValueError(f"output_max: at least {OUTPUT_BYTES_MIN} bytes")


def kubernetes_of(site: Site) -> KubernetesSite:
    return section_of(site, "kubernetes", KubernetesSite)
