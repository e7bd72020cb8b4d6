"""Actions on many jobs: which jobs an action would touch, and what it did."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from switchyard.model.job.job import Priority
from switchyard.model.wire.api import SELECT_JOBS_MAX
from switchyard.model.wire.ids import JobIdText
from switchyard.model.wire.schema import field_given

SELECTION_JOBS_MAX = 2000  # ids in one answer


class BulkAction(StrEnum):
    """What is done to many jobs."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    PRIORITY = "priority"
    RETRY = "retry"


class SelectedCount(Struct, frozen=True):
    """How many selected jobs are in one state and belong to one owner and one project."""

    state: str
    owner: str
    project: str
    jobs: int


class SelectedJob(Struct, frozen=True):
    """A selected job, as a person recognizes it."""

    id: str
    name: str
    state: str
    owner: str


class ReasonCount(Struct, frozen=True):
    """How many jobs an action refuses for one reason."""

    reason: str
    jobs: int


class JobSelection(Struct, frozen=True, omit_defaults=True):
    """One round of the jobs that an action would touch. Repeat with `cursor` = `next` until `next` is none.

    `first`: some of these jobs. `refused`: jobs that match, but that the caller may not change.
    """

    ids: list[str] = []
    counts: list[SelectedCount] = []
    first: list[SelectedJob] = []
    refused: list[ReasonCount] = []
    next: str | None = None


class ActOnJobs(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Do one thing to these jobs and to no others. Sending it again changes nothing more.

    `priority`: of the action `priority` alone. `reason`: of a cancel.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "if": {"required": ["action"], "properties": {"action": {"const": "priority"}}},
        "then": field_given("priority"),
        "else": {"not": field_given("priority")},
    }

    action: BulkAction
    jobs: Annotated[list[JobIdText], Meta(min_length=1, max_length=SELECT_JOBS_MAX)]
    priority: Priority | None = None
    reason: Annotated[str, Meta(max_length=1024)] = ""

    def __post_init__(self) -> None:
        if (self.priority is not None) != (self.action is BulkAction.PRIORITY):
            raise ValueError("the action `priority` needs a priority, and no other action takes one")


class RefusedJob(Struct, frozen=True):
    """A job that an action left as it was, and why."""

    id: str
    reason: str


class ActedOnJobs(Struct, frozen=True, omit_defaults=True):
    """What became of the jobs. `unchanged`: nothing was left to do, such as holding a held job again."""

    changed: int = 0
    unchanged: int = 0
    refused: list[RefusedJob] = []
