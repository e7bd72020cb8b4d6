"""A job while it is admitted: the request as the rules fill it, and what else they decide. Kinds amend it. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.executions.execution import ExecutionConfig
from switchyard.model.job.bounds import NO_BOUNDS, Bounds
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.scope import Level, ScopeKey, show_key
from switchyard.policy.platform import Platform

EMPTY_SCOPE_KEY: ScopeKey = ("", "", "", "")


class Provenance(Struct, frozen=True):
    """The source of a value: the platform's config (for all, or for one domain), a row, or the job itself."""

    level: Level
    key: ScopeKey = EMPTY_SCOPE_KEY
    row: str = ""

    def __str__(self) -> str:
        if self.level is Level.PLATFORM:
            return "platform config" if self.key == EMPTY_SCOPE_KEY else f"platform config, {show_key(self.key)}"
        return self.level.value if self.key == EMPTY_SCOPE_KEY else f"{self.level.value} level: {show_key(self.key)}"


class Entry(Struct, frozen=True):
    """A value with its provenance."""

    value: Any
    source: Provenance


RecordOverrides = dict[tuple[str, str], Entry | None]
REQUEST = Provenance(Level.REQUEST)
LAUNCH_PLAN_SOURCE = Provenance(Level.LAUNCH_PLAN)  # values that a launch plan sets itself, above all rows


class Draft(Struct, frozen=True):
    """Immutable: kinds return a changed copy, by `msgspec.structs.replace`, of the draft and of its request.

    `bounds`: where the job may run; at first as the request says. `own`: values to record instead of the effective
    ones. None: the effective value was not used; it is not recorded.
    `refusals`: why the job is not admitted; each names the limit and its level.
    """

    request: JobRequest
    platform: Platform
    launch_plan: ExecutionConfig | None = None  # the launch plan's own spec, below the request and above all rows
    auth_role: ExecutionConfig | None = None  # Flyte's deprecated role: below all rows and above the platform
    # Of a job written as a jobspec: what its largest task asks for, by the names of task resources.
    demanded: dict[str, int] = {}
    bounds: Bounds = NO_BOUNDS
    parallel_max: int | None = None
    budget_s: int | None = None  # how long it may wait before it is late
    tokens: dict[str, int] = {}  # token pool → tokens that the job holds until its end
    own: RecordOverrides = {}
    refusals: tuple[str, ...] = ()

    def bounded(self, **changes: Any) -> Draft:
        """Return the draft with other bounds."""
        return replace(self, bounds=replace(self.bounds, **changes))
