"""Who needs a place: jobs of a limited queue are not assigned on arrival, but wait until the leader gives them one."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.model.queue import Queues, project_of, queue_named, queue_of
from switchyard.model.verdict import Plan
from switchyard.service.committer import Batch
from switchyard.service.history import waits
from switchyard.service.inquiries import QUOTES
from switchyard.service.report import blocked
from switchyard.store import jobs

QUEUE = "queue"  # the word for it among what blocks a PENDING job
FREED = "queues"  # the leader is woken: a place may be free, or somebody waits for one


def needs_place(queues: Queues, lane: str) -> bool:
    return queue_named(queues, queue_of(lane)).limits_project(project_of(lane))


def why_queued(queues: Queues, lane: str) -> str:
    """True as long as it waits; how many run, and how many wait before it, `explain` says."""
    name, project = queue_of(lane), project_of(lane)
    limits = queue_named(queues, name).limits
    if limits.running is not None:
        return f"queue {name}: waits for one of its {limits.running} places"
    return f"queue {name}: waits for one of the {limits.projects.get(project, 0)} places of project {project}"


def kept_waiting(decided: Plan, queues: Queues, lane: str) -> Plan:
    """A new job that could go somewhere, as it waits for its place."""
    return msgspec.structs.replace(decided, outcome="hold", chosen=None, reason=why_queued(queues, lane))


def queue_up(batch: Batch, row: jobs.Row, queues: Queues) -> dict[str, Any]:
    """The columns of a PENDING job that could be assigned but for a place."""
    batch.versions.add(FREED)
    why = why_queued(queues, row.lane)
    if why != row.reason:
        waits(batch, row, why)
    return {"blocked": blocked(blocked(row.blocked, remove=QUOTES), add=QUEUE), "reason": why}


def place_columns(row: jobs.Row, places: int | None) -> dict[str, Any]:
    """The columns of a job that waits for no place any more, whatever else became of it."""
    change: dict[str, Any] = {}
    if QUEUE in (row.blocked or ""):
        change["blocked"] = blocked(row.blocked, remove=QUEUE)
    if places is not None or row.places is not None:
        change["places"] = places  # those of an earlier attempt are gone
    return change
