"""Scopes: domain, project, workflow, launch plan. Where a job belongs, and where rules are set."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.rules.names import NAME_HINT, Name

# Workflows are named after modules, which nest deeper than anything people name by hand.
LONG_NAME_PATTERN = r"^[A-Za-z0-9_]([A-Za-z0-9._@+-]{0,253}[A-Za-z0-9_])?(?!\n)$"
LongName = Annotated[str, Meta(pattern=LONG_NAME_PATTERN, min_length=1, max_length=255, description=NAME_HINT)]

ScopeKey = tuple[str, str, str, str]  # domain, project, workflow, launch plan; empty: not given


class Level(StrEnum):
    """The level of a scope, the least specific first."""

    PLATFORM = "platform"
    DOMAIN = "domain"
    PROJECT = "project"
    PROJECT_DOMAIN = "project+domain"
    WORKFLOW = "workflow"
    LAUNCH_PLAN = "launch-plan"
    REQUEST = "request"  # the job says so itself


LEVEL_RANK = {level: rank for rank, level in enumerate(Level)}
ROW_LEVELS = (Level.DOMAIN, Level.PROJECT, Level.PROJECT_DOMAIN, Level.WORKFLOW, Level.LAUNCH_PLAN)


class Scope(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A scope. Its fields give its level: a workflow is in a project and domain, a launch plan in a workflow."""

    domain: Name | None = None
    project: Name | None = None
    workflow: LongName | None = None
    launch_plan: LongName | None = None

    def __post_init__(self) -> None:
        if self.workflow is not None and (self.project is None or self.domain is None):
            raise ValueError("a workflow lies in a project and a domain: give both")
        if self.launch_plan is not None and self.workflow is None:
            raise ValueError("a launch plan belongs to a workflow: give that, too")

    @property
    def key(self) -> ScopeKey:
        return (self.domain or "", self.project or "", self.workflow or "", self.launch_plan or "")

    @property
    def level(self) -> Level:
        """PLATFORM where nothing is given: no row can be there."""
        return level_of(self.key)

    def __str__(self) -> str:
        return show_key(self.key)


def level_of(key: ScopeKey) -> Level:
    domain, project, workflow, launch_plan = key
    if launch_plan:
        return Level.LAUNCH_PLAN
    if workflow:
        return Level.WORKFLOW
    if project:
        return Level.PROJECT_DOMAIN if domain else Level.PROJECT
    return Level.DOMAIN if domain else Level.PLATFORM


def scope_of(key: ScopeKey) -> Scope:
    return Scope(*(part or None for part in key))


def show_key(key: ScopeKey) -> str:
    """`project P, domain D, workflow W, launch plan L`, as far as given."""
    domain, project, workflow, launch_plan = key
    parts = (("project", project), ("domain", domain), ("workflow", workflow), ("launch plan", launch_plan))
    return ", ".join(f"{word} {name}" for word, name in parts if name) or "the platform"
