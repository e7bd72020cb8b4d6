"""The section `workflows` of the server's config: how much of tasks, workflows and launch plans may be."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct

from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.model.jobspec.quantity import parse_bytes
from switchyard.sections import section_of
from switchyard.server.config.config import Config
from switchyard.server.config.limits_section import ByteLimit, LimitValue
from switchyard.server.config.settings import ANY_HOST, Settings

_DEFAULTS = WorkflowLimits()
MissedRuns = Literal["skip", "last", "all"]
ServerUrl = Annotated[str, Meta(max_length=1024, pattern=r"^(https?://[^\s/?#]+/?)?(?!\n)$")]


class WorkflowsSection(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """How much of tasks, workflows and launch plans may be registered and run. 0: no limit. The limit of each user's
    live executions is `limits.executions`."""

    nodes: LimitValue = _DEFAULTS.nodes  # of one workflow, with its sub-workflows and branches
    project_entities: LimitValue = _DEFAULTS.project_entities  # versions that one project may register
    project_bytes: ByteLimit = "10Gi"  # of their contents
    executions: bool = True  # whether tasks and launch plans may be run
    project_executions: LimitValue = _DEFAULTS.project_executions  # live ones in one project
    execution_rows: LimitValue = _DEFAULTS.execution_rows  # nodes of one execution and their attempts
    execution_bytes: ByteLimit = "256Mi"  # of what the nodes of one execution take and give
    execution_descendants: LimitValue = _DEFAULTS.execution_descendants  # that nodes of one execution start in all
    missed_runs: MissedRuns = "last"  # what happens to times of a schedule that no server saw in time
    url: ServerUrl = ""  # that Flyte's clients reach the HTTP port by, for uploads; empty: the address of `--http`

    def __post_init__(self) -> None:
        parse_bytes(self.project_bytes)
        parse_bytes(self.execution_bytes)

    @cached_property
    def limits(self) -> WorkflowLimits:
        return WorkflowLimits(
            nodes=self.nodes,
            project_entities=self.project_entities,
            project_bytes=parse_bytes(self.project_bytes),
            has_executions=self.executions,
            project_executions=self.project_executions,
            execution_rows=self.execution_rows,
            execution_bytes=parse_bytes(self.execution_bytes),
            execution_descendants=self.execution_descendants,
            missed_runs=self.missed_runs,
        )


def workflows_section(config: Config) -> WorkflowsSection:
    return section_of(config, "workflows", WorkflowsSection)


def clients_url(settings: Settings) -> str:
    """The address that Flyte's clients reach the HTTP port by. Empty: it is not known."""
    configured = workflows_section(settings.config).url.rstrip("/")
    return configured or ("" if settings.http[0] in ANY_HOST else settings.url)
