"""Queues: attributes, limits and weights; which of them a job's tags select; and how a job stands in its own.

Values only: who may change them, and who counts what runs, is not said here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from switchyard.model.cluster.native_grammars import NAMES
from switchyard.model.job.job import Priority
from switchyard.model.jobspec.quantity import Duration, parse_duration_s
from switchyard.model.rules.names import Name
from switchyard.model.wire.schema import UNIQUE_ITEMS

UNCOUNTED_PREFIX = "-"  # before the lane of a job that counts nowhere any more; no queue's name begins so
DEFAULT_QUEUE = "default"  # built in: it takes what no tag sends elsewhere
PLACES_MAX = 2**31 - 1  # what the column holds
NATIVE_PATTERN = rf"^(?:{NAMES.pattern})(?!\n)$"
TAGS_MAX = 100
WEIGHT_MIN, WEIGHT_MAX = 1e-6, 1e6  # of a project: beyond, a share says nothing any more
COUNTED_PROJECTS_MAX = 100  # projects with a limit, of one queue, counted one by one
LANES_CACHE_MAX = 4096  # projects times queues that have jobs now; of more, some are read again
AHEAD_MAX = 1000  # counting further would cost what nobody needs to know

Tag = Name
PlaceCount = Annotated[int, Meta(ge=0, le=PLACES_MAX)]
NativeName = Annotated[str, Meta(pattern=NATIVE_PATTERN, min_length=1, max_length=128)]
ProjectWeight = Annotated[float, Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)]


class QueueLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many jobs and array tasks may be assigned or running at once: `running` in all, `projects` by project."""

    running: PlaceCount | None = None
    projects: Annotated[dict[Name, PlaceCount], Meta(max_length=10_000)] = {}


class Queue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The settings of a queue. The defaults limit nothing."""

    # The tags that select it, besides its name.
    attributes: Annotated[list[Tag], Meta(max_length=TAGS_MAX, extra_json_schema=UNIQUE_ITEMS)] = []
    limits: QueueLimits = QueueLimits()
    priority: Priority = 0  # added to that of its jobs
    interruptible: bool = False  # what runs here may be preempted: only for jobs that bear it
    native: dict[Name, NativeName] = {}  # cluster → what its batch system calls this queue
    weights: dict[Name, ProjectWeight] = {}  # project → its weight in the fair share; not given: 1
    # A job that others passed for so long, because it did not fit, holds back whatever comes after it.
    ageing: Duration = "5m"

    def __post_init__(self) -> None:
        parse_duration_s(self.ageing)
        for project, weight in self.weights.items():
            if not (math.isfinite(weight) and WEIGHT_MIN <= weight <= WEIGHT_MAX):
                raise ValueError(
                    f"the weight {weight:g} of {project} is not a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
                )

    @property
    def ageing_us(self) -> int:
        return parse_duration_s(self.ageing) * 1_000_000

    def counted(self, name: str) -> list[str]:
        """Whose places are counted: all of the queue's, or those of some projects, as `name/project`; none: no limit.

        Of very many projects it is all: they would make a statement that no database takes.
        """
        if self.limits.running is None and len(self.limits.projects) <= COUNTED_PROJECTS_MAX:
            return [f"{name}/{project}" for project in sorted(self.limits.projects)]
        return [name]

    def limits_project(self, project: str) -> bool:
        """Whether a job of this project needs a place."""
        return self.limits.running is not None or project in self.limits.projects

    def weight_of(self, project: str) -> float:
        return self.weights.get(project, 1.0)

    def has_all(self, name: str, tags: Collection[str]) -> bool:
        return all(tag == name or tag in self.attributes for tag in tags)


PLAIN_QUEUE = Queue()
Queues = Mapping[str, Queue]  # by name; `default` need not be among them


def queue_named(queues: Queues, name: str) -> Queue:
    """Return the settings of a queue. A removed queue has the defaults, which limit nothing."""
    return queues.get(name, PLAIN_QUEUE)


def known_tags(queues: Queues) -> frozenset[str]:
    return frozenset(tag for name, queue in queues.items() for tag in (name, *queue.attributes)) | {DEFAULT_QUEUE}


def queues_with_tags(queues: Queues, tags: Sequence[str], *, is_interruptible: bool) -> tuple[str, ...]:
    """Return the names of the queues that have all of these tags; without tags, the default queue."""
    if not tags:
        return (DEFAULT_QUEUE,)
    queues_ = [
        name for name, queue in queues.items() if queue.has_all(name, tags) and _accepts_job(queue, is_interruptible)
    ]
    if DEFAULT_QUEUE not in queues and PLAIN_QUEUE.has_all(DEFAULT_QUEUE, tags):
        queues_.append(DEFAULT_QUEUE)
    return tuple(sorted(queues_))


def _accepts_job(queue: Queue, is_interruptible: bool) -> bool:
    return is_interruptible or not queue.interruptible


class Lane(NamedTuple):
    """The jobs of one project in one queue. `text`: as it is stored, `queue/project`.

    Jobs restricted to some backends have a lane of their own, so that they do not block others: `queue/project flux`.
    """

    text: str
    queue: str
    project: str

    @staticmethod
    @lru_cache(maxsize=LANES_CACHE_MAX)
    def read(text: str) -> Lane:
        """Read a stored lane."""
        queue, _, rest = counted_lane(text).partition("/")
        return Lane(text, queue, rest.partition(" ")[0])

    @staticmethod
    @lru_cache(maxsize=LANES_CACHE_MAX)
    def of(queue: str, project: str, backends: Sequence[str] = ()) -> Lane:
        return Lane.read(f"{queue}/{project} {','.join(backends)}" if backends else f"{queue}/{project}")

    def needs_place(self, queues: Queues) -> bool:
        """Whether its jobs need a place of their queue."""
        return queue_named(queues, self.queue).limits_project(self.project)


def uncounted_lane(text: str) -> str:
    """Return the stored lane in which a job of this lane counts for no place."""
    return UNCOUNTED_PREFIX + counted_lane(text)


def counted_lane(text: str) -> str:
    return text.removeprefix(UNCOUNTED_PREFIX)


def is_counted_lane(text: str) -> bool:
    return not text.startswith(UNCOUNTED_PREFIX)


class QueueView(Struct, frozen=True, omit_defaults=True):
    """A queue as the API shows it. `source`: file, run time, or built in."""

    name: str
    queue: Queue
    source: str
    etag: str
    changed_us: int | None = None
    changed_by: str = ""


class DomainTags(Struct, frozen=True, omit_defaults=True):
    """The tags of a domain's jobs, if neither the job nor an attribute sets tags."""

    domain: str
    tags: list[str]
    source: str
    etag: str
    changed_us: int | None = None
    changed_by: str = ""


class TagsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    tags: Annotated[list[Tag], Meta(min_length=1, max_length=TAGS_MAX)]


class Share(Struct, frozen=True):
    """A project's cores relative to its weight. Of equal priorities, the project with the lowest share goes first."""

    project: str
    cores: int
    weight: float

    @property
    def share(self) -> float:
        return self.cores / self.weight


class QueuePosition(Struct, frozen=True, omit_defaults=True):
    """The position of a waiting job. `ahead`: the jobs before it at present; `is_more`: there may be more."""

    queue: str
    priority: int  # the job's and the queue's
    ahead: int
    is_more: bool = False
    limit: int | None = None  # of the queue, and how many of it are assigned or run
    running: int | None = None
    project_limit: int | None = None
    project_running: int | None = None
    shares: list[Share] = []

    @property
    def position(self) -> str:
        """In words: 3, or 1000+."""
        return f"{self.ahead}+" if self.is_more else str(self.ahead + 1)
