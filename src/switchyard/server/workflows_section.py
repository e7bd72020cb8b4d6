"""The config section `workflows`: how much of Flyte's tasks, workflows and launch plans may be registered and run."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.quantity import parse_bytes
from switchyard.server.limits_section import ByteLimit, LimitValue
from switchyard.workflow.limits import WorkflowLimits

_DEFAULTS = WorkflowLimits()
ServerUrl = Annotated[str, Meta(max_length=1024, pattern=r"^(https?://[^\s/?#]+/?)?(?!\n)$")]


class WorkflowsSection(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """`nodes`: of one workflow with its sub-workflows and branches. The others: what one project may register, in
    versions of tasks, workflows and launch plans, and in bytes. 0: no limit. `executions`: whether they may be run,
    which is a trial."""

    nodes: LimitValue = _DEFAULTS.nodes  # of one workflow, with its sub-workflows and branches
    project_entities: LimitValue = _DEFAULTS.project_entities  # versions that one project may register
    project_bytes: ByteLimit = "10Gi"  # of their contents
    executions: bool = False  # a trial, for sites whose users trust each other: one user's can hold up another's
    url: ServerUrl = ""  # that Flyte's clients reach the HTTP port by, for uploads; empty: the address of `--http`

    def __post_init__(self) -> None:
        parse_bytes(self.project_bytes)

    @cached_property
    def limits(self) -> WorkflowLimits:
        return WorkflowLimits(self.nodes, self.project_entities, parse_bytes(self.project_bytes), self.executions)
