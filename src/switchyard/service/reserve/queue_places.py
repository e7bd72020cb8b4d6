"""Places in limited queues. A job of a limited queue is not assigned on arrival: the leader must give it a place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from switchyard.model.cluster.verdict import Outcome, Plan
from switchyard.model.job.blocker import Blocker, change_blocked, has_blocker
from switchyard.model.rules.queue import PLACES_MAX, Lane, Queue, Queues, queue_named
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.decision_history import record_wait_reason
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


@dataclass
class PlacesInUse:
    """The places of a queue that are in use, by project. `take` counts further ones."""

    queue: Queue
    by_project: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(queue: Queue, taken: Mapping[str, tuple[int, float]]) -> PlacesInUse:
        """Build from the store's counts: `taken` maps each lane of this queue to its places and cores."""
        in_use = PlacesInUse(queue)
        for lane, (places, _) in taken.items():
            in_use.take(Lane.read(lane).project, places)
        return in_use

    @property
    def spare(self) -> int:
        """The number of free places. It is negative after the limit was lowered below the places in use."""
        running = self.queue.limits.running
        return PLACES_MAX if running is None else running - sum(self.by_project.values())

    def spare_for(self, project: str) -> int:
        limit = self.queue.limits.projects.get(project)
        return self.spare if limit is None else min(self.spare, limit - self.by_project.get(project, 0))

    @property
    def is_over(self) -> bool:
        """Whether the queue or a project uses more places than its limit."""
        return any(self.spare_for(project) < 0 for project in self.by_project)

    def take(self, project: str, places: int) -> None:
        self.by_project[project] = self.by_project.get(project, 0) + places


def queue_wait_reason(lane: Lane) -> str:
    """Return the reason of a job that waits for a place. It has no numbers, as they change; `explain` shows them."""
    return f"queue {lane.queue}: waits for a place"


def queue_full_reason(queues: Queues, lane: Lane, taken: Mapping[str, tuple[int, float]]) -> str:
    """Return why a job of this lane gets no place, or an empty text if a place is free."""
    name, project = lane.queue, lane.project
    places = PlacesInUse.of(queue_named(queues, name), taken)
    if places.spare_for(project) > 0:
        return ""
    limits = places.queue.limits
    if limits.running is not None and places.spare <= 0:
        return f"queue {name}: {sum(places.by_project.values())} of its {limits.running} places are taken"
    in_use = places.by_project.get(project, 0)
    return f"queue {name}: project {project} has {in_use} of the {limits.projects[project]} places it may have"


def hold_plan(plan: Plan, reason: str) -> Plan:
    """Return the plan of a new job that has an eligible cluster but must wait, for example for a place."""
    return msgspec.structs.replace(plan, outcome=Outcome.HOLD, chosen=None, reason=reason)


def enqueue_for_place(batch: Batch, row: JobRow) -> JobUpdate:
    """Make a PENDING job that has an eligible cluster wait for a place in its queue."""
    batch.topics.add(Topic.QUEUES)
    reason = queue_wait_reason(Lane.read(row.lane))
    if reason != row.reason:
        record_wait_reason(batch, row, reason)
    blocked = change_blocked(change_blocked(row.blocked, remove=Blocker.QUOTES), add=Blocker.QUEUE)
    return JobUpdate(blocked=blocked, reason=reason)


def leave_queue(row: JobRow, places: int | None) -> JobUpdate:
    """End a job's wait for a place. `places`: the number of places the job got, or None if it got no place."""
    is_queued = has_blocker(row.blocked, Blocker.QUEUE)
    had_places = row.places is not None  # from an earlier attempt
    return JobUpdate(
        blocked=change_blocked(row.blocked, remove=Blocker.QUEUE) if is_queued else UNSET,
        places=places if places is not None or had_places else UNSET,
    )
