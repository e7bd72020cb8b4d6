"""The server's config file (YAML): every section, checked for shape, all mistakes listed at once."""

from __future__ import annotations

import typing
from functools import cache, cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.feature import installed_features
from switchyard.model.executions.execution import (
    PARALLEL_MAX,
    AnnotationKey,
    EnvName,
    EnvValue,
    LongText,
    RawOutput,
    SecurityContext,
)
from switchyard.model.job.job import Priority
from switchyard.model.job.log import OUTPUT_BYTES_MAX
from switchyard.model.job.spill import SpillTexts, parse_rules, pools_in_rules
from switchyard.model.jobspec.quantity import DURATION_S_MAX, parse_bytes, parse_duration_s
from switchyard.model.rules.layout import WEIGHT_MAX
from switchyard.model.rules.names import LabelKey, LabelValue, Name
from switchyard.model.rules.queue import Queue
from switchyard.model.wire.decode import load_yaml
from switchyard.policy.kinds.job_priority import HIGHEST_DEFAULT, LOWEST_DEFAULT
from switchyard.policy.namespace_names import NAMESPACE_TEMPLATE, namespace_of
from switchyard.route.moving import MovingSettings
from switchyard.sections import with_sections
from switchyard.server.config.clusters_section_checks import duplicate_clusters, unlisted_members
from switchyard.server.config.config_reading import config_reading, read_keys, with_positions
from switchyard.server.config.connections_section import ConnectionsSection
from switchyard.server.config.limits_section import ByteLimit, LimitsSection
from switchyard.server.config.probation_section import ProbationSection
from switchyard.server.config.section_checks import INVALID_PART, find_mistakes, valid_part
from switchyard.server.config.storage_section import StorageSection
from switchyard.service.core.file_storage import FileLimits

ConfigDuration = Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)]
NEVER = "never"


class MovingSection(Struct, frozen=True, forbid_unknown_fields=True):
    """`idle_takes_after`: an idle cluster takes over jobs that have waited this long at another cluster, or `never`.

    A job moves for a better quote at most once in `rest`. The quote must be better by at least `gain` (of its start) or
    `gain_cost` (of its cost), and by at least the share `gain_share` of the present wait or cost.
    """

    idle_takes_after: ConfigDuration = "30s"
    rest: ConfigDuration = "1m"
    gain: ConfigDuration = "1m"
    gain_cost: Annotated[float, Meta(ge=0, le=1e12)] = 1.0
    gain_share: Annotated[float, Meta(ge=0, le=1)] = 0.25

    def __post_init__(self) -> None:
        for value in (self.rest, self.gain, *([] if self.idle_takes_after == NEVER else [self.idle_takes_after])):
            parse_duration_s(value)

    @property
    def terms(self) -> MovingSettings:
        idle = self.idle_takes_after
        return MovingSettings(
            idle_after_us=None if idle == NEVER else parse_duration_s(idle) * 1_000_000,
            rest_us=parse_duration_s(self.rest) * 1_000_000,
            gain_s=parse_duration_s(self.gain),
            gain_cost=self.gain_cost,
            gain_share=self.gain_share,
        )


class SpillSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Spill rules for jobs without rules of their own or of their scope: by pool, and `default` for all others."""

    default: SpillTexts = []
    pools: dict[Name, SpillTexts] = {}

    def __post_init__(self) -> None:
        mistakes = []
        for where, texts in self.lists.items():
            try:
                parse_rules(texts)
            except ValueError as exc:
                mistakes.append(f"{where}: {exc}")
        if mistakes:
            raise ValueError("; ".join(mistakes))

    @property
    def lists(self) -> dict[str, list[str]]:
        return {"default": self.default} | {f"pools.{pool}": texts for pool, texts in self.pools.items()}

    @property
    def by_pool(self) -> dict[str, tuple[str, ...]]:
        """As policy has it: the name of a pool, or none for all others."""
        by_pool = {"": tuple(self.default)} if self.default else {}
        return by_pool | {pool: tuple(texts) for pool, texts in self.pools.items()}

    def strangers(self, pools: frozenset[str]) -> list[str]:
        """Pools that are named here and nowhere given."""
        named = [(f"spill.{where}", pool) for where, texts in self.lists.items() for pool in pools_in_rules(texts)]
        named += [("spill.pools", pool) for pool in self.pools]
        return [f"{where}: there is no pool {pool!r}" for where, pool in named if pool not in pools]


GRACE_S_MIN = 60  # a client must be able to send files and then submit; a seal has half of it
KeepPeriod = Annotated[int, Meta(ge=0, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)]


class FilesSection(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Bytes: 0 is no limit. `keep`: the files of a job from its end on (0 or never: as long as the job)."""

    user_bytes: ByteLimit = "100Gi"  # of all objects that one user holds, each counted once, unused uploads too
    project_bytes: ByteLimit = "1Ti"  # of the trees that the jobs of a project need, each counted once
    tree_bytes: ByteLimit = "100Gi"  # of the files of one tree
    keep: KeepPeriod = "14d"
    grace: KeepPeriod = "24h"  # what no job needs, from its last use on

    def __post_init__(self) -> None:
        for name in ("user_bytes", "project_bytes", "tree_bytes"):
            parse_bytes(getattr(self, name))
        if self.keep not in (0, "0", "never"):
            parse_duration_s(self.keep)
        if parse_duration_s(self.grace) < GRACE_S_MIN:
            raise ValueError(
                f"the grace is at least {GRACE_S_MIN} seconds: files are sent before the job that needs them"
            )

    @cached_property
    def limits(self) -> FileLimits:
        keep_us = None if self.keep in (0, "0", "never") else parse_duration_s(self.keep) * 1_000_000
        return FileLimits(
            parse_bytes(self.user_bytes),
            parse_bytes(self.project_bytes),
            parse_bytes(self.tree_bytes),
            keep_us,
            parse_duration_s(self.grace) * 1_000_000,
        )


class JobPrioritySection(Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest and the highest priority of a job. Rules set others for a domain or a project."""

    lowest: Priority = LOWEST_DEFAULT
    highest: Priority = HIGHEST_DEFAULT


Weight = Annotated[float, Meta(ge=0, le=WEIGHT_MAX)]
RawQuantity = str | int | float
MISTAKES_MAX = 100
REFERENCED_SECTIONS = ("domains", "queues", "clusters")  # sections whose names others use


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections."""


class ClusterAuth(Section, frozen=True):
    type: str = ""
    tokenPath: str = ""
    certPath: str = ""


class ClusterConfig(Section, frozen=True):
    """A cluster. Agents connect to the server: how to reach the cluster is taken from Flyte's files, and not used."""

    name: Name
    enabled: bool = True
    endpoint: str = ""
    auth: ClusterAuth = ClusterAuth()
    kubeClientConfig: dict[str, Any] = {}
    inCluster: bool = False


class WeightedCluster(Section, frozen=True):
    id: Name
    weight: Weight = 1.0


class PoolAssignment(Section, frozen=True):
    pool: Name


class ClustersSection(Section, frozen=True):
    clusterConfigs: list[ClusterConfig] = []
    poolNameClusterMap: dict[Name, list[WeightedCluster]] = {}
    labelClusterMap: dict[Name, list[WeightedCluster]] = {}
    defaultExecutionLabel: Name | None = None
    clusterPoolAssignments: dict[Name, PoolAssignment] = {}
    stickyPools: list[Name] = []  # whose jobs no idle cluster takes over


class QueueConfig(Queue, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Name

    @property
    def settings(self) -> Queue:
        return Queue(**{field: getattr(self, field) for field in Queue.__struct_fields__})


class DomainSection(Section, frozen=True):
    id: Name
    name: str = ""
    tags: list[Name] = []


class ResourceSetSection(Section, frozen=True):
    cpu: RawQuantity | None = None
    gpu: RawQuantity | None = None
    memory: RawQuantity | None = None
    ephemeral_storage: RawQuantity | None = None
    ephemeralStorage: RawQuantity | None = None
    storage: RawQuantity | None = None


class TaskResourcesSection(Section, frozen=True):
    defaults: ResourceSetSection = ResourceSetSection()
    limits: ResourceSetSection = ResourceSetSection()


class ExecutionConfigSection(Section, frozen=True):
    max_parallelism: Annotated[int, Meta(ge=0, le=PARALLEL_MAX)] | None = None  # 0: no bound
    interruptible: bool | None = None
    overwrite_cache: bool | None = None
    raw_output_data_config: RawOutput | None = None
    security_context: SecurityContext | None = None
    labels: dict[LabelKey, LabelValue] | None = None
    annotations: dict[AnnotationKey, LongText] | None = None
    envs: dict[EnvName, EnvValue] | None = None


class TierValue(Section, frozen=True):
    queueingBudget: RawQuantity


class QualityOfServiceSection(Section, frozen=True):
    tierExecutionValues: dict[Name, TierValue] = {}
    defaultTiers: dict[Name, Name] = {}


class RedisConfig(Section, frozen=True):
    """`hostPaths`: host:port, or of the Sentinels that know `primaryName`; `hostKey`: the password."""

    hostPaths: list[Annotated[str, Meta(min_length=1, max_length=260)]] = []
    hostKey: str = ""
    maxRetries: Annotated[int, Meta(ge=0, le=10)] = 3
    primaryName: str = ""


class ResourceManagerSection(Section, frozen=True):
    """Token pools: where they are kept, their limits, and the tokens that jobs of a task type need (`taskTypes`)."""

    type: typing.Literal["noop", "memory", "redis"] = "noop"
    resourceMaxQuota: Annotated[int, Meta(ge=0)] = 100
    redis: RedisConfig = RedisConfig()
    taskTypes: dict[Name, dict[str, Annotated[int, Meta(ge=0)]]] = {}
    # The longest lease of a caller; after a loss of what was granted nothing is granted for so long.
    leaseMax: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)] = "5m"

    def __post_init__(self) -> None:
        parse_duration_s(self.leaseMax)


SECRET_CHARS_MIN = 12


class NamespaceMappingSection(Section, frozen=True):
    template: str = NAMESPACE_TEMPLATE

    def __post_init__(self) -> None:
        namespace_of(self.template, project="project", domain="domain")


class MatchSection(Section, frozen=True):
    """The engine that checks whether a job fits a cluster, and the engines that users may name (`--match-engine`)."""

    engine: Name = "shapes"
    allowed: list[Name] = msgspec.field(default_factory=lambda: ["shapes", "walk"])


class SelectionSection(Section, frozen=True):
    """The algorithm that selects a cluster, for jobs that name none.

    `stale`: whether it may use values of clusters that are older than `stale_after`.
    """

    name: Name = "weighted"
    options: dict[str, Any] = {}
    stale: typing.Literal["use", "ignore"] = "use"
    stale_after: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)] = "3m"
    quote_deadline_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0  # for clusters that are asked for quotes

    def __post_init__(self) -> None:
        parse_duration_s(self.stale_after)

    @property
    def quote_wait_us(self) -> int:
        return round(self.quote_deadline_s * 1_000_000)

    @property
    def stale_after_us(self) -> int:
        return parse_duration_s(self.stale_after) * 1_000_000


class LogsSection(Section, frozen=True):
    """Where the output of jobs is kept. Of a stream longer than `bytes_max`, the first and the last half are kept."""

    store: typing.Literal["database", "directory"] = "database"
    path: str = ""  # of the directory; relative to the server's data
    bytes_max: Annotated[int, Meta(ge=1024, le=2**40)] = OUTPUT_BYTES_MAX


RetentionPeriod = Annotated[int, Meta(ge=0, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)]


class RetentionSection(Section, frozen=True):
    """How long ended jobs and executions, output, events and audit entries are kept: 30d, 12h, or seconds; 0 or never:
    for ever."""

    jobs: RetentionPeriod = "30d"  # from a job's end on; with its attempts, events and output
    logs: RetentionPeriod = "7d"  # likewise, its output alone
    events: RetentionPeriod = "30d"
    audit: RetentionPeriod = "365d"
    executions: RetentionPeriod = "30d"  # from an execution's end on; with its nodes, their inputs and outputs

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            self.period_us(name)

    def period_us(self, name: str) -> int | None:
        """None: for ever."""
        value: int | str = getattr(self, name)
        return None if value in (0, "0", "never") else parse_duration_s(value) * 1_000_000


class MetricsSection(Section, frozen=True):
    """`anonymous`: everyone who reaches the server may read `/metrics`. Else it needs the role view on the platform."""

    anonymous: bool = False


def _domains() -> list[Name | DomainSection]:
    return [DomainSection("development"), DomainSection("staging"), DomainSection("production")]


class Config(Section, frozen=True):
    """The whole file."""

    clusters: ClustersSection = ClustersSection()
    queues: list[QueueConfig] = []
    domains: list[Name | DomainSection] = msgspec.field(default_factory=_domains)
    task_resources: TaskResourcesSection = TaskResourcesSection()
    execution_config: ExecutionConfigSection = ExecutionConfigSection()
    quality_of_service: QualityOfServiceSection = QualityOfServiceSection()
    job_priority: JobPrioritySection = JobPrioritySection()
    namespace_mapping: NamespaceMappingSection = NamespaceMappingSection()
    resourcemanager: ResourceManagerSection = ResourceManagerSection()
    match: MatchSection = MatchSection()
    selection: SelectionSection = SelectionSection()
    moving: MovingSection = MovingSection()
    probation: ProbationSection = ProbationSection()
    spill: SpillSection = SpillSection()
    logs: LogsSection = LogsSection()
    retention: RetentionSection = RetentionSection()
    storage: StorageSection = StorageSection()
    metrics: MetricsSection = MetricsSection()
    connections: ConnectionsSection = ConnectionsSection()
    limits: LimitsSection = LimitsSection()
    files: FilesSection = FilesSection()

    @property
    def all_domains(self) -> list[DomainSection]:
        return [DomainSection(domain) if isinstance(domain, str) else domain for domain in self.domains]

    @property
    def domain_names(self) -> frozenset[str]:
        return frozenset(domain.id for domain in self.all_domains)


@cache
def config_type() -> type[Config]:
    """The config with the sections of features. A section may be left out: then it has its defaults, or is None."""
    return with_sections(
        Config, {name: place for feature in installed_features() for name, place in feature.config.items()}
    )


def read_config(text: str, *, where: str) -> Config:
    """Return the config, or raise one error that lists every mistake."""
    mistakes = list_mistakes(text, where=where)
    if mistakes:
        raise Malformed(format_mistakes(mistakes, text, where=where), next_step="Correct them all and start again.")
    value = load_yaml(text, where=where)
    return config_type()() if value is None else msgspec.convert(read_keys(value).value, config_type())


def list_mistakes(text: str, *, where: str) -> list[str]:
    """What is wrong with the file's own parts; not with names that they have of each other."""
    value = load_yaml(text, where=where)
    if value is None:
        return []
    reading = read_keys(value)
    mistakes = [*reading.mistakes, *map(reading.in_file, find_mistakes(reading.value, config_type(), ""))]
    if mistakes:
        clusters = reading.value.get("clusters") if isinstance(reading.value, dict) else None
        mistakes += [*duplicate_clusters(clusters), *unlisted_members(clusters)]
    return mistakes


def format_mistakes(mistakes: list[str], text: str, *, where: str) -> str:
    listed = "\n".join(f"  - {mistake}" for mistake in with_positions(mistakes[:MISTAKES_MAX], text))
    return f"{where} has {len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}:\n{listed}"


def valid_parts(text: str) -> Config:
    """Return the valid parts of a config with mistakes, so that mistakes between sections are listed, too.

    Returns an empty config if a section is invalid whose names other sections use: all those names would seem unknown.
    """
    value = config_reading(text).value
    hints = typing.get_type_hints(config_type(), include_extras=True)
    sections = {name: section for name, section in value.items() if name in hints} if isinstance(value, dict) else {}
    parts = {name: valid_part(section, hints[name]) for name, section in sections.items()}
    if any(parts.get(name) is INVALID_PART for name in REFERENCED_SECTIONS):
        return config_type()()
    sound = {name: section for name, section in parts.items() if section is not INVALID_PART}
    if sound.get("queues") != sections.get("queues"):  # the mistake may be the very tag that a domain names
        sound["domains"] = [
            domain if isinstance(domain, str) else {"id": domain["id"]} for domain in sound.get("domains", [])
        ]
        if not sound["domains"]:
            del sound["domains"]
    return msgspec.convert(sound, config_type())
