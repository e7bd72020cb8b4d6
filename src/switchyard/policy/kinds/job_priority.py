"""Job priority (8): the lowest and the highest priority that a job may have. Only platform administrators set it.

A higher priority goes before the fair share of all other projects. So a project's own administrator may not raise it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.job.job import PRIORITY_MAX, Priority
from switchyard.model.rules.scope import Level
from switchyard.policy.draft import Draft, Entry, Provenance
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform

HIGHEST_DEFAULT = 0  # as in Slurm: users may lower the priority of their jobs, only operators may raise it
LOWEST_DEFAULT = -PRIORITY_MAX
_PLATFORM = Provenance(Level.PLATFORM)
_HIGHEST, _LOWEST = Entry(HIGHEST_DEFAULT, _PLATFORM), Entry(LOWEST_DEFAULT, _PLATFORM)


class JobPriorityValue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    lowest: Priority | None = None
    highest: Priority | None = None

    def __post_init__(self) -> None:
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(f"lowest ({self.lowest}) is above highest ({self.highest})")


class JobPriorityKind(Kind):
    number = 8
    name = "job-priority"
    title = "job priority"
    value = JobPriorityValue
    merge = Merge.FIELD
    is_for_jobs = False  # admission applies it last: after kinds of other packages, which may set a priority
    is_for_platform_admins = True
    sample: ClassVar[dict[str, Any]] = {"lowest": -1000, "highest": 100}

    def check(self, value: Any, platform: Platform) -> list[str]:
        return [] if self.flatten(value) else ["give lowest, highest or both"]


JOB_PRIORITY = JobPriorityKind()


def bound_priority(draft: Draft, fields: Mapping[str, Entry], *, is_operator: bool) -> Draft:
    """Refuse a priority outside the bounds. A job that asks for none (0) gets the nearest priority within them.

    `is_operator`: the caller is an operator of the platform, who may give a job any priority.
    """
    priority = draft.request.priority
    if not priority:
        nearest = nearest_priority(priority, fields)
        return draft if nearest == priority else replace(draft, request=replace(draft.request, priority=nearest))
    if is_operator:
        return draft
    refusal = priority_refusal(priority, fields)
    return replace(draft, refusals=(*draft.refusals, refusal)) if refusal else draft


def priority_refusal(priority: int, fields: Mapping[str, Entry]) -> str:
    """Return why a job may not have this priority, with the bound and its level; empty: it may."""
    highest, lowest = fields.get("highest", _HIGHEST), fields.get("lowest", _LOWEST)
    if priority > highest.value:
        return f"priority: asks for {priority}, and the highest is {highest.value} ({highest.source})"
    if priority < lowest.value:
        return f"priority: asks for {priority}, and the lowest is {lowest.value} ({lowest.source})"
    return ""


def nearest_priority(priority: int, fields: Mapping[str, Entry]) -> int:
    """Return the nearest priority within the bounds. If the levels contradict each other, the highest one decides."""
    nearest: int = min(
        max(priority, fields.get("lowest", _LOWEST).value),
        fields.get("highest", _HIGHEST).value,
    )
    return nearest
