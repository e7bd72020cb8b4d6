"""The section `flux` of the site file: how to reach one Flux instance, and what its jobs get."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from switchyard.agent.site.site import ClusterSection, Site
from switchyard.agent.site.site_types import AbsolutePath, ShortSeconds
from switchyard.model.cluster.native_grammars import NAME
from switchyard.sections import section_of

# `local:///run/flux/local`, `ssh://login1/run/flux/local`: what Flux's own FLUX_URI may be.
InstanceUri = Annotated[str, Meta(max_length=4096, pattern=r"^[a-z]+://[^\u0000-\u0020]+(?!\n)$")]
Bank = Annotated[str, Meta(max_length=NAME.chars_max, pattern=rf"^({NAME.pattern})?(?!\n)$")]
ShellOption = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z][A-Za-z0-9_.-]*(?!\n)$")]
ShellValue = Annotated[str, Meta(max_length=1024)] | int | bool

# For sites that want separate accounts: every job runs under the account of its agent.
ACCOUNTS_ADVICE = "Jobs of other users run under their accounts if each user runs an agent."


class FluxSite(ClusterSection, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to reach one Flux instance, and how long to wait for it."""

    uri: InstanceUri | None = None  # None: FLUX_URI of the agent, or the system instance
    bin: AbsolutePath | None = None  # folder of the command `flux`; None: PATH
    # Where the output of jobs is written: a folder that the nodes see under the same path. None: the agent's data
    # folder.
    folder: AbsolutePath | None = None
    timeout_s: ShortSeconds = 30.0  # of one request to the instance
    state_s: ShortSeconds = 10.0  # between two queries of the resources
    # How long the instance must answer without knowing a job before a doubtful submit counts as not arrived.
    settle_s: ShortSeconds = 10.0
    # Ask each node by a small job what its system is, whenever it begins to take jobs. The nodes must see `yard` under
    # the same path as the agent.
    discover_nodes: bool = False
    bank: Bank = ""  # for jobs that name none
    # Options of the job shell for every job, such as `cpu-affinity: "off"`.
    shell_options: Annotated[dict[ShellOption, ShellValue], Meta(max_length=100)] = {}

    def work_folder(self, directory: Path) -> Path:
        return Path(self.folder) if self.folder else directory / "output"


def flux_of(site: Site) -> FluxSite:
    return section_of(site, "flux", FluxSite)
