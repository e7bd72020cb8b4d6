"""The site file (`yard agent --config FILE`): how to reach the cluster, what it costs and what it allows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.agent.private_files import read_bounded
from switchyard.agent.site.accounts import AccountSwitch, AllowList
from switchyard.agent.site.site_data import DataSite, SecretRule
from switchyard.agent.site.site_types import AbsolutePath, Amount, ImagePull, LongSeconds, ShortSeconds
from switchyard.errors import Malformed
from switchyard.feature import installed_features
from switchyard.model.cluster.hardware import HardwareNames, SiteNames
from switchyard.model.job.image_rules import RULES_MAX, ImagePattern, ImageRun
from switchyard.model.job.site_needs import OFFERS_MAX, is_below
from switchyard.model.jobspec.quantity import parse_bytes, parse_duration_s
from switchyard.model.rules.names import Name
from switchyard.model.wire.decode import convert, load_yaml
from switchyard.sections import with_sections

SITE_FILE_BYTES_MAX = 1024 * 1024
Rate = Annotated[float, Meta(ge=0, le=1e9)]
# `/data`, `/data:ro`, `/srv/data:/data`, `/srv/data:/data:ro`
Mount = Annotated[
    str, Meta(max_length=8192, pattern=r"^/[^\u0000-\u001f:,]*(:/[^\u0000-\u001f:,]*)?(:(ro|rw))?(?!\n)$")
]


class ContainmentMode(StrEnum):
    """How the local backend finds all processes of a job, to end them."""

    AUTO = "auto"  # by control group, where the agent may make one, and by a scan of all processes
    CGROUP = "cgroup"  # the same, but the agent does not start without control groups
    PROCESS = "process"  # only by a scan of all processes


class LocalSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of the local backend."""

    containment: ContainmentMode = ContainmentMode.AUTO
    # Bytes of stdout and stderr that a job may leave on the agent's disk. A job that writes more is ended.
    output_max: Amount = "10GiB"

    def __post_init__(self) -> None:
        if self.output_bytes <= 0:
            raise ValueError("output_max must be more than zero")

    @property
    def output_bytes(self) -> int:
        return parse_bytes(self.output_max)


class Rates(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cost of an hour in the site's unit: the sum of the three."""

    node: Rate = 0
    core: Rate = 0
    gpu: Rate = 0


class FilesSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files that travel with jobs: the cache, and the folders in which jobs with files run."""

    cache: Amount = "20GiB"  # bytes of input files kept for later jobs; 0: none are kept
    # For the cache and the jobs' folders. None: the agent's data folder; with Slurm `slurm: {folder}`. With Slurm, the
    # nodes must see it under the same path.
    folder: AbsolutePath | None = None
    # Bytes of the file system that input files leave free for running jobs. None: a tenth of it, 64 MiB to 1 GiB.
    reserve: Amount | None = None
    keep: Amount | None = None  # how long a job's folder stays after its output files are at the server
    out_files: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000  # output files taken of one attempt
    out_bytes: Amount = "1TiB"  # their bytes
    # How long output files over a limit of the server are tried again. So long the job's folder stays.
    out_retry: Amount = "24h"

    def __post_init__(self) -> None:
        for name, text, parse in (
            ("cache", self.cache, parse_bytes),
            ("reserve", self.reserve or 0, parse_bytes),
            ("out_bytes", self.out_bytes, parse_bytes),
            ("keep", self.keep or 1, parse_duration_s),
            ("out_retry", self.out_retry, parse_duration_s),
        ):
            try:
                parse(text)
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from exc

    @property
    def cache_bytes(self) -> int:
        return parse_bytes(self.cache)

    @property
    def reserve_bytes(self) -> int | None:
        return None if self.reserve is None else parse_bytes(self.reserve)

    @property
    def out_bytes_max(self) -> int:
        return parse_bytes(self.out_bytes)

    @property
    def out_retry_s(self) -> int:
        return parse_duration_s(self.out_retry)

    @property
    def keep_s(self) -> int:
        return parse_duration_s(self.keep) if self.keep else 0


class OutageSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to do when the batch system (Slurm, Kubernetes, Flux) does not answer the agent."""

    # So long without an answer, and the cluster takes nothing new: it is down, and jobs go to other clusters.
    silent_after_s: ShortSeconds = 30.0
    # So long without an answer, and leased jobs go back that have not begun and cannot begin here any more.
    give_back_after_s: LongSeconds = 60.0


class AccountsSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Accounts of jobs. `map`: a file with a line `user: local-account` per user; `*` is for all other users."""

    map: AbsolutePath
    way: AccountSwitch = AccountSwitch.UID


class ImageRule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What happens to jobs whose image matches the pattern. `path`: a folder that goes before PATH, on the host."""

    match: ImagePattern
    run: ImageRun
    path: AbsolutePath | None = None

    def __post_init__(self) -> None:
        if self.path is not None and self.run is not ImageRun.HOST:
            raise ValueError(f"path: only `run: host` has one, and this is `run: {self.run.value}`")
        if self.path is not None and ":" in self.path:
            raise ValueError("path: one folder, without a colon")


class ContainerGpus(StrEnum):
    """Whose GPUs a container gets. Without it, jobs that ask for GPUs do not run in containers."""

    NVIDIA = "nvidia"
    AMD = "amd"


class ContainersSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every container of a job gets, besides the job's folder."""

    pull: ImagePull = ImagePull.MISSING
    mounts: Annotated[list[Mount], Meta(max_length=100)] = []  # folders of the host
    gpus: ContainerGpus | None = None


class ClusterSection(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The section of one kind of cluster, which a feature adds to the site file."""

    def check_site(self, site: Site) -> None:
        """Raise ValueError for what contradicts other sections."""

    def work_folder(self, directory: Path) -> Path:
        """Where jobs work and write: as the nodes see it, if it is not the agent's own folder `directory`."""
        return directory

    @property
    def role_accounts(self) -> Mapping[str, str]:
        """By an IAM role, the service account of the cluster that has it."""
        return {}

    @property
    def is_elsewhere(self) -> bool:
        """Whether the cluster's commands run on another machine: accounts and files of this one are not there."""
        return False


class Site(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The site file. `rates` and `queues` are keyed by the cluster's names; `*` is for all others."""

    local: LocalSite = LocalSite()
    queues: Annotated[
        dict[Name, Name], Meta(max_length=10_000)
    ] = {}  # our queue: the cluster's partition or queue, or queue of Kueue
    rates: Annotated[dict[str, Rates], Meta(max_length=10_000)] = {}
    accounts: AccountsSite | None = None  # None: every job runs under the agent's account
    allow: AllowList = AllowList()
    files: FilesSite = FilesSite()
    outage: OutageSite = OutageSite()
    # The first rule that matches counts. Without a matching rule, a job that names an image is refused.
    images: Annotated[list[ImageRule], Meta(max_length=RULES_MAX)] = []
    containers: ContainersSite = ContainersSite()
    data: DataSite = DataSite()
    hardware_names: HardwareNames = {}  # the cluster's spelling of a type of device: its common name
    secrets: Annotated[list[SecretRule], Meta(max_length=OFFERS_MAX)] = []  # that jobs may name

    def __post_init__(self) -> None:
        for section in self.cluster_sections():
            section.check_site(self)
        has_containers = any(rule.run not in (ImageRun.HOST, ImageRun.REFUSE) for rule in self.images)
        mounted = [mount.split(":")[-2 if mount.endswith((":ro", ":rw")) else -1] for mount in self.containers.mounts]
        if self.data.folder and has_containers and not any(is_below(self.data.folder, path) for path in mounted):
            raise ValueError("data.folder: containers do not see it; add it to `containers: {mounts: […]}`")

    def cluster_sections(self) -> list[ClusterSection]:
        values = (getattr(self, name) for name in self.__struct_fields__)
        return [value for value in values if isinstance(value, ClusterSection)]

    def cluster_section(self, kind: str | None) -> ClusterSection | None:
        """The section of a kind of cluster, which has the kind's name."""
        section = getattr(self, kind or "", None)
        return section if isinstance(section, ClusterSection) else None

    @property
    def role_accounts(self) -> dict[str, str]:
        sections = self.cluster_sections()
        return {role: account for section in sections for role, account in section.role_accounts.items()}

    @property
    def names(self) -> SiteNames:
        """The common names of the cluster's devices."""
        return SiteNames(self.hardware_names)

    @property
    def is_elsewhere(self) -> bool:
        return any(section.is_elsewhere for section in self.cluster_sections())


@cache
def site_type() -> type[Site]:
    """The site file with the sections of features."""
    return with_sections(
        Site, {name: place for feature in installed_features() for name, place in feature.site.items()}
    )


def read_site(path: Path | None) -> Site:
    if path is None:
        return site_type()()
    body, _ = read_bounded(path, SITE_FILE_BYTES_MAX, advice="Give --config a file that is there.")
    values = load_yaml(body, where=str(path))
    if isinstance(values, dict) and isinstance(values.get("containers"), str):
        raise Malformed(
            f"{path}: `containers: {values['containers'][:40]}` is no longer known: the rules for images are under "
            "`images`.",
            next_step='To run jobs on the host whatever image they name, write `images: [{match: "*", run: host}]`.',
        )
    return convert({} if values is None else values, site_type(), where=str(path))
