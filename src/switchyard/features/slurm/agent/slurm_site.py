"""The section `slurm` of the site file: how to reach one Slurm."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from switchyard.agent.site.site import ClusterSection, Site
from switchyard.agent.site.site_types import AbsolutePath, LongSeconds, ShortSeconds
from switchyard.model.cluster.native_grammars import NAME
from switchyard.sections import section_of

SlurmAccount = Annotated[str, Meta(max_length=NAME.chars_max, pattern=rf"^({NAME.pattern})?(?!\n)$")]
CommandPrefix = Annotated[str, Meta(max_length=4096)]


def runs_over_ssh(prefix: list[str]) -> bool:
    """Whether the prefix calls ssh, whose shell splits the words again; also in `timeout 9 ssh login1`."""
    return any(word.rpartition("/")[2] == "ssh" for word in prefix)


class SlurmSite(ClusterSection, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to reach one Slurm, and how long to wait for it."""

    conf: AbsolutePath | None = None  # slurm.conf; None: SLURM_CONF of the agent, or Slurm's default
    bin: AbsolutePath | None = None  # folder of the commands; None: PATH
    prefix: CommandPrefix = ""  # words before every command, e.g. `ssh login1`
    # Where scripts write output and exit codes: a folder that the nodes see under the same path. None: the agent's data
    # folder. Over ssh: a folder on that machine.
    folder: AbsolutePath | None = None
    # of one command; a paused controller delays each by its MessageTimeout, usually 10 s
    timeout_s: ShortSeconds = 30.0
    poll_s: ShortSeconds = 1.0  # minimum between two squeue calls; right after news a quarter of it
    state_s: ShortSeconds = 10.0  # between two queries of the nodes
    # How long the controller must answer without knowing a job before a doubtful submit counts as not arrived, or a
    # missing job as lost.
    settle_s: ShortSeconds = 10.0
    # A job that began and that the controller forgot is lost when accounting has provably caught up without its end.
    # If nothing proves that, it is lost after this time.
    accounts_lost_after_s: LongSeconds = 3600.0
    # How long the end of a job waits until its container is gone, where Slurm killed the job's script.
    container_wait_s: LongSeconds = 3600.0
    account: SlurmAccount = ""  # for jobs that name none
    # Ask each node by `srun` what its system is, whenever it begins to take jobs. The nodes must see `yard` under the
    # same path as the agent.
    discover_nodes: bool = False

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.prefix)
        except ValueError as exc:
            raise ValueError(f"prefix: {exc}") from exc
        if runs_over_ssh(words) and self.folder is None:
            raise ValueError("with ssh, say with `folder` where jobs may write their output there")

    def check_site(self, site: Site) -> None:
        if site.accounts is not None and self.is_elsewhere:
            raise ValueError("accounts: over ssh jobs run as the account that ssh logs in to; run an agent there")

    def work_folder(self, directory: Path) -> Path:
        return Path(self.folder) if self.folder else directory / "output"

    @property
    def is_elsewhere(self) -> bool:
        return runs_over_ssh(shlex.split(self.prefix))


def slurm_of(site: Site) -> SlurmSite:
    return section_of(site, "slurm", SlurmSite)
