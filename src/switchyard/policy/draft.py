"""A job while it is admitted: the request as the rules fill it, and what they say about it besides. Kinds amend it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from switchyard.model.execution import ExecutionConfig
from switchyard.model.job import JobRequest
from switchyard.model.scope import Level, ScopeKey, show_key
from switchyard.policy.platform import Platform

EMPTY_SCOPE_KEY: ScopeKey = ("", "", "", "")


class Provenance(Struct, frozen=True):
    """Who gave a value: the platform's config (for all, or for one domain), a row, or the job itself."""

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
LAUNCH_PLAN_SOURCE = Provenance(Level.LAUNCH_PLAN)  # what a launch plan says itself, above all rows


class Draft(Struct, frozen=True):
    """Kinds return a changed copy, by `msgspec.structs.replace`, as also of the request.

    `own`: (kind, field) → what stands in the record in place of the effective value; none: that took no part.
    `refusals`: why the job is not admitted; each names the limit and its level.
    """

    request: JobRequest
    platform: Platform
    launch_plan: ExecutionConfig | None = None  # the launch plan's own spec, below the request and above all rows
    auth_role: ExecutionConfig | None = None  # Flyte's deprecated role: below all rows and above the platform
    # Of a job written as a jobspec: what its largest task asks for, in the words of task resources.
    demanded: dict[str, int] = {}
    pool: str | None = None
    label: str | None = None
    tags: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()  # the job wants one of these, in this order
    needs_backend: bool = False  # … and goes nowhere without
    parallel_max: int | None = None
    is_interruptible: bool = False
    budget_s: int | None = None  # how long it may wait before it is late
    spill: tuple[str, ...] = ()  # what becomes of it when it waits for long
    spill_from: str = ""
    tokens: dict[str, int] = {}  # what it holds of token pools while it lives
    own: RecordOverrides = {}
    refusals: tuple[str, ...] = ()
