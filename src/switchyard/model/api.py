"""The remaining messages of the HTTP API: pages, events, problems, projects, output."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Raw, Struct

from switchyard.model.idset import IdSet
from switchyard.model.job import Priority
from switchyard.model.names import Name, Title

Item = TypeVar("Item")


class Page(Struct, Generic[Item], frozen=True):
    """One page of a list. `next` is the cursor of the following page; none: this is the last."""

    items: list[Item]
    next: str | None = None


class Problem(Struct, frozen=True, omit_defaults=True):
    """RFC 9457: what happened (detail), a stable code, and what to do next."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    next_step: str = ""


class Event(Struct, frozen=True, omit_defaults=True):
    """Something that happened to a job. `seq` only grows, and no smaller one appears later."""

    seq: int
    at_us: int
    job: str
    kind: str
    state: str
    attempt: int = 0
    fence: int = 0
    cluster: str | None = None
    reason: str = ""


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """Who changed what."""

    id: str
    at_us: int
    actor: str
    action: str
    object: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class Project(Struct, frozen=True, omit_defaults=True):
    name: str
    description: str = ""
    created_us: int = 0


class ProjectRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    description: Title = ""


class Chunk(Struct, frozen=True):
    offset: int
    data: bytes


class Output(Struct, frozen=True, omit_defaults=True):
    """What a job wrote. `size` counts all of it; a gap between chunks was left out by the bound."""

    job: str
    stream: str
    chunks: list[Chunk]
    size: int = 0


class Me(Struct, frozen=True, omit_defaults=True):
    """Who the server takes you for."""

    name: str
    groups: list[str] = []
    is_platform_admin: bool = False
    grants: list[str] = []


class Created(Struct, frozen=True, omit_defaults=True):
    """What a submit answers: enough to go on, without reading the job again."""

    id: str
    state: str
    cluster: str | None = None
    reason: str = ""


class Deleted(Struct, frozen=True):
    deleted: str


class Version(Struct, frozen=True):
    version: str
    now_us: int


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`tasks`: of an array only these, e.g. `3,5-7`."""

    reason: Annotated[str, Meta(max_length=1024)] = ""
    tasks: Annotated[str, Meta(max_length=65_536)] | None = None

    def __post_init__(self) -> None:
        if self.tasks is not None:
            IdSet.parse(self.tasks)


class JobChange(Struct, frozen=True, forbid_unknown_fields=True):
    """`hold`: true holds, false releases."""

    priority: Priority | None = None
    hold: bool | None = None


class RetryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that is over, once more as a new job. `tasks`: of an array these; none: those that did not succeed."""

    elsewhere: bool = False
    tasks: Annotated[str, Meta(max_length=65_536)] | None = None

    def __post_init__(self) -> None:
        if self.tasks is not None:
            IdSet.parse(self.tasks)


BULK_JOBS_MAX = 100_000


class BulkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Many jobs at once: all or none, or with `each` every one by itself."""

    jobs: Annotated[list[Raw], Meta(min_length=1, max_length=BULK_JOBS_MAX)]
    each: bool = False


class BulkItem(Struct, frozen=True, omit_defaults=True):
    """One job of a bulk request: made, or refused."""

    job: Created | None = None
    problem: Problem | None = None


class BulkAnswer(Struct, frozen=True):
    """In the order of the request."""

    items: list[BulkItem]
    made: int
    refused: int = 0
