"""What a feature adds to the agent's own commands, for clusters of one kind: `yard agent doctor` and `discover`.

The backend itself is found by its kind (`agent/backends/registry.py`); the section of the site file is in the
feature's `site`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from switchyard.agent.site.site import Site
from switchyard.feature import load_parts


@dataclass(frozen=True, slots=True)
class SystemsQuestion:
    """What `yard agent discover --per-node` asks a cluster. `program`: the words that run `yard` on a node."""

    site: Site
    environment: Mapping[str, str]
    program: Sequence[str]
    image: str | None = None  # for a job that looks at its node
    namespace: str | None = None  # where such jobs run


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """Whether the cluster answers. `is_over`: it does not, and the backend would only say the same."""

    findings: Sequence[Finding] = ()
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class CanaryAdvice:
    """What to do if the small job fails, in the words of one system. `{name}` in `cancel` is the job.

    `waits`: by how the system's reason begins.
    """

    output: str = "See what the batch system says of the job, and whether this machine sees where it writes."
    cancel: str = "Cancel it by hand."
    silent: str = "See whether the batch system runs."
    slow: str = "See the nodes and their logs."
    queued: str = "See what the batch system says of the job."
    waits: Mapping[str, str] = field(default_factory=dict)
    is_always: bool = False  # `output` is the advice whatever the backend itself said

    @classmethod
    def of(cls, text: str) -> CanaryAdvice:
        """The same advice for every failure."""
        return cls(output=text, cancel=text, silent=text, slow=text, queued=text, is_always=True)


@dataclass(frozen=True, slots=True)
class SmallJob:
    """A place for the doctor's small job."""

    project: str = "default"
    domain: str = "development"


class AgentFeature:
    """The part of one kind of backend. A kind overrides what is different there."""

    kind = ""
    nobody_advice = "Do the nodes see this program under the same path?"  # if no node says what its system is
    accounts_advice = ""  # for sites that want separate accounts
    canary_advice = CanaryAdvice()
    has_local_accounts = True  # jobs run under accounts that this machine knows
    has_nodes = True  # beside this machine: `discover --per-node` may ask them
    has_images = False  # a small job may need an image: `--image`

    def check_folder(self, directory: Path) -> Sequence[Finding]:
        """Look at what the backend has in the agent's folder."""
        return ()

    def check(self, site: Site, environment: Mapping[str, str], namespaces: Sequence[str]) -> ClusterCheck:
        """Look at the cluster without a job."""
        return ClusterCheck()

    def small_job(self, site: Site, namespaces: Sequence[str]) -> SmallJob | Finding | None:
        """Where the doctor's small job runs. A finding: why it cannot. None: in the common way, if there is a queue."""
        return None

    def describe_systems(self, question: SystemsQuestion) -> tuple[dict[str, Any], dict[str, str]] | None:
        """What the system of each node is, as a subsystem, and why others do not say. None: nobody can be asked."""
        return None


@cache
def agent_features() -> Mapping[str, AgentFeature]:
    """By the kind of their backends."""
    return {part.kind: part for part in load_parts("agent", AgentFeature)}


def feature_of(kind: str | None) -> AgentFeature:
    return agent_features().get(kind or "") or AgentFeature()


class Finding(Struct, frozen=True):
    """The result of one check. `is_ok`: None if there was nothing to check."""

    check: str
    is_ok: bool | None
    detail: str
    advice: str = ""
