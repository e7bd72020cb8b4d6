"""Who needs a place: jobs of a limited queue are not assigned on arrival, but wait until the leader gives them one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from switchyard.model.queue import PLACES_MAX, Queue, Queues, project_of_lane, queue_named, queue_of_lane
from switchyard.model.verdict import Plan
from switchyard.service.committer import Batch
from switchyard.service.job.decision_history import record_wait_reason
from switchyard.service.quote.inquiries import BLOCKED_BY_QUOTES
from switchyard.service.run.report import change_blocked
from switchyard.store import jobs

BLOCKED_BY_QUEUE = "queue"  # the word for it among what blocks a PENDING job
QUEUES_CHANGED = "queues"  # the leader is woken: a place may be free, or somebody waits for one


def needs_place(queues: Queues, lane: str) -> bool:
    return queue_named(queues, queue_of_lane(lane)).limits_project(project_of_lane(lane))


@dataclass
class PlacesInUse:
    """What is taken of a queue's places, as more are given."""

    queue: Queue
    by_project: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(queue: Queue, taken: Mapping[str, tuple[int, float]]) -> PlacesInUse:
        """`taken`: by lane of this queue, as the store counts it."""
        found = PlacesInUse(queue)
        for lane, (places, _) in taken.items():
            found.take(project_of_lane(lane), places)
        return found

    @property
    def spare(self) -> int:
        """Free ones; below zero: the limit was lowered, and so many are to become free before it holds."""
        running = self.queue.limits.running
        return PLACES_MAX if running is None else running - sum(self.by_project.values())

    def spare_for(self, project: str) -> int:
        most = self.queue.limits.projects.get(project)
        return self.spare if most is None else min(self.spare, most - self.by_project.get(project, 0))

    @property
    def is_over(self) -> bool:
        """Whether more is taken than there is."""
        return any(self.spare_for(project) < 0 for project in self.by_project)

    def take(self, project: str, places: int) -> None:
        self.by_project[project] = self.by_project.get(project, 0) + places


def queue_wait_reason(lane: str) -> str:
    """Without numbers: they change while it waits. `explain` has them."""
    return f"queue {queue_of_lane(lane)}: waits for a place"


def queue_full_reason(queues: Queues, lane: str, taken: Mapping[str, tuple[int, float]]) -> str:
    """Why there is no place for a job of this lane; empty: there is one."""
    name, project = queue_of_lane(lane), project_of_lane(lane)
    places = PlacesInUse.of(queue_named(queues, name), taken)
    if places.spare_for(project) > 0:
        return ""
    limits = places.queue.limits
    if limits.running is not None and places.spare <= 0:
        return f"queue {name}: {sum(places.by_project.values())} of its {limits.running} places are taken"
    has = places.by_project.get(project, 0)
    return f"queue {name}: project {project} has {has} of the {limits.projects[project]} places it may have"


def hold_plan(decided: Plan, why: str) -> Plan:
    """A new job that could go somewhere, as it waits for its place."""
    return msgspec.structs.replace(decided, outcome="hold", chosen=None, reason=why)


def enqueue_for_place(batch: Batch, row: jobs.Row) -> dict[str, Any]:
    """The columns of a PENDING job that could be assigned but for a place."""
    batch.versions.add(QUEUES_CHANGED)
    why = queue_wait_reason(row.lane)
    if why != row.reason:
        record_wait_reason(batch, row, why)
    return {
        "blocked": change_blocked(change_blocked(row.blocked, remove=BLOCKED_BY_QUOTES), add=BLOCKED_BY_QUEUE),
        "reason": why,
    }


def leave_queue_columns(row: jobs.Row, places: int | None) -> dict[str, Any]:
    """The columns of a job that waits for no place any more, whatever else became of it."""
    change: dict[str, Any] = {}
    if BLOCKED_BY_QUEUE in (row.blocked or ""):
        change["blocked"] = change_blocked(row.blocked, remove=BLOCKED_BY_QUEUE)
    if places is not None or row.places is not None:
        change["places"] = places  # those of an earlier attempt are gone
    return change
