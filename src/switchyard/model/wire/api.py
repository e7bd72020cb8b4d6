"""The remaining messages of the HTTP API: pages, events, problems, projects, output."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Raw, Struct

from switchyard.model.cluster.idset import IDSET_PATTERN, TEXT_CHARS_MAX, IdSet
from switchyard.model.job.job import Priority, State
from switchyard.model.jobspec.quantity import DURATION_S_MAX
from switchyard.model.rules.names import SHOWN_TEXT_PATTERN, LabelKey, LabelValue, Name
from switchyard.model.rules.scope import LongName
from switchyard.model.wire.ids import JobIdText

Item = TypeVar("Item")


class Page(Struct, Generic[Item], frozen=True):
    """One page of a list. `next` is the cursor of the following page; none: this is the last."""

    items: list[Item]
    next: str | None = None


class Problem(Struct, frozen=True, omit_defaults=True):
    """RFC 9457: what happened (detail), a stable code, and what to do next. `limit`: the name of the limit reached."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    next_step: str = ""
    limit: str = ""


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
    """An entry of the audit log: who changed which object, from which value to which."""

    id: str
    at_us: int
    actor: str
    action: str
    object: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


ProjectLabels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=16)]


class Project(Struct, frozen=True, omit_defaults=True):
    """Each job of the project gets its `labels`, unless the job has a label of the same name."""

    name: str
    description: str = ""
    created_us: int = 0
    title: str = ""
    labels: dict[str, str] = {}
    is_archived: bool = False


class ProjectRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    description: Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, max_length=300)] = ""
    title: Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, max_length=64)] = ""
    labels: ProjectLabels = {}


class ProjectChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An archived project accepts no new jobs and no new rules. Its jobs and rules stay readable."""

    description: Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, max_length=300)] | None = None
    title: Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, max_length=64)] | None = None
    labels: ProjectLabels | None = None
    is_archived: bool | None = None


class Chunk(Struct, frozen=True):
    offset: int
    data: bytes


class Output(Struct, frozen=True, omit_defaults=True):
    """The output of one attempt from an offset on; continue with `next`. A gap: the output was too long to keep all.

    `size`: how far it reaches as yet. `is_over`: this was all, and no more will come; `is_last`: nor another attempt.
    """

    job: str
    stream: str
    chunks: list[Chunk]
    size: int = 0
    next: int = 0
    attempt: int = 1
    is_over: bool = False
    is_last: bool = False


class Me(Struct, frozen=True, omit_defaults=True):
    """The caller of a request: name, groups and grants."""

    name: str
    groups: list[str] = []
    is_platform_admin: bool = False
    grants: list[str] = []


class CreatedJob(Struct, frozen=True, omit_defaults=True):
    """The answer to a submit. `stale_tokens`: names in `submit_tokens` whose token opened no cluster."""

    id: str
    state: str
    cluster: str | None = None
    reason: str = ""
    stale_tokens: list[str] = []


class Deleted(Struct, frozen=True, omit_defaults=True):
    deleted: str
    outputs_given_up: int = 0  # of agents: attempts whose output files were not sent yet


class Version(Struct, frozen=True):
    version: str
    now_us: int


TaskIndexes = Annotated[str, Meta(max_length=TEXT_CHARS_MAX, extra_json_schema={"pattern": IDSET_PATTERN})]


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`tasks`: cancel only these tasks of an array, for example `3,5-7`."""

    reason: Annotated[str, Meta(max_length=1024)] = ""
    tasks: TaskIndexes | None = None

    def __post_init__(self) -> None:
        if self.tasks is not None:
            IdSet.parse(self.tasks)


class JobChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`hold`: true holds, false releases."""

    priority: Priority | None = None
    hold: bool | None = None


class RetryRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Submit an ended job again, as a new job. `tasks`: of an array; none: all tasks that did not succeed."""

    elsewhere: bool = False
    tasks: TaskIndexes | None = None

    def __post_init__(self) -> None:
        if self.tasks is not None:
            IdSet.parse(self.tasks)


BULK_JOBS_MAX = 100_000
# Jobs of one request that are made all or none, or wait for each other: they are one transaction of a second or two.
BULK_WHOLE_MAX = 10_000


class BulkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Submit many jobs: all or none; with `each`, a refused job does not refuse the others."""

    jobs: Annotated[list[Raw], Meta(min_length=1, max_length=BULK_JOBS_MAX)]
    each: bool = False


class BulkItem(Struct, frozen=True, omit_defaults=True):
    """The result of one job of a bulk request: the job, or the error."""

    job: CreatedJob | None = None
    problem: Problem | None = None


class BulkAnswer(Struct, frozen=True):
    """The results, in the order of the request."""

    items: list[BulkItem]
    made: int
    refused: int = 0


SELECT_JOBS_MAX = 500  # changed in one round, which is several short transactions


class JobSelector(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Selects jobs. A job must match every field that is given."""

    states: Annotated[list[State], Meta(max_length=8)] = []
    cluster: Name | None = None
    project: Name | None = None
    domain: Name | None = None
    workflow: LongName | None = None
    launch_plan: LongName | None = None
    owner: Name | None = None
    labels: Annotated[dict[LabelKey, LabelValue], Meta(max_length=64)] = {}
    since_s: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | None = None  # made within the last so many seconds


class CancelMany(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cancel one round of the jobs that match a selector. Repeat with `cursor` = `next` until `next` is none.

    `dry_run`: only look. An empty selector means every job you may act on, so it has to be said: `everything`.
    """

    selector: JobSelector = JobSelector()
    everything: bool = False
    reason: Annotated[str, Meta(max_length=1024)] = ""
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=SELECT_JOBS_MAX)] = SELECT_JOBS_MAX
    cursor: JobIdText | None = None


class CancelledMany(Struct, frozen=True, omit_defaults=True):
    """One round: `asked` jobs were cancelled (or would be), `refused` jobs the caller may not cancel."""

    asked: int = 0
    refused: int = 0
    ids: list[str] = []  # of those asked
    next: str | None = None
