"""How queues are used: the cores each project has, the places that are taken, and how a waiting job stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from switchyard.model.job import State
from switchyard.model.queue import (
    AHEAD_MAX,
    Queue,
    QueuePosition,
    Queues,
    Share,
    is_counted_lane,
    project_of_lane,
    queue_named,
    queue_of_lane,
)
from switchyard.route.queue_order import FairQueue, QueuedJob
from switchyard.service.context import Context
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE
from switchyard.store import jobs
from switchyard.store import queues as store
from switchyard.store.database import Tx
from switchyard.store.job_columns import column_check

# a count of cores is used for this long, with what was given since; other servers' comes late
CORES_CACHE_US = 1_000_000
READ_SHARE = 20  # … and longer where reading it took long: for at most a twentieth of the time
ROWS_MAX = 10_000  # looked at to find one job's position
SHARES_MAX = 20  # shown of one line


class ProjectCores:
    """The cores that each project has, on all clusters and in all queues, as last read."""

    def __init__(self) -> None:
        self._cores: dict[str, float] = {}
        self._until_us = 0

    def cores(self, tx: Tx, now_us: int) -> dict[str, float]:
        """By project. The caller may add what it gives: it counts until the next reading."""
        if now_us >= self._until_us:
            began = time.perf_counter()
            self._cores = cores_by_project(tx)
            took_us = int((time.perf_counter() - began) * 1_000_000)
            self._until_us = now_us + max(CORES_CACHE_US, READ_SHARE * took_us)
        return self._cores


def cores_by_project(tx: Tx) -> dict[str, float]:
    found: dict[str, float] = {}
    for lane, cores in store.leased_cores_by_lane(tx).items():
        if not isinstance(lane, str) or not is_counted_lane(lane):
            continue
        found[project_of_lane(lane)] = found.get(project_of_lane(lane), 0.0) + cores
    return found


def ordered_job_of(row: Any, queue: Queue, *, is_aged: bool = False) -> QueuedJob[Any]:
    return QueuedJob(row.id, row.project, row.priority + queue.priority, queue.weight_of(row.project), row, is_aged)


def queue_position(
    context: Context, tx: Tx, row: jobs.Row, *, may_see: Callable[[str], bool] = lambda _project: True
) -> QueuePosition | None:
    """How a job stands that waits for a place in its queue, or for its lease; none: it waits for neither.

    `may_see`: whether the reader may hear of a project's share.
    """
    lanes = _lanes(tx, row)
    if lanes is None:
        return None
    queues, name = context.snapshots.laid.layout.queues, queue_of_lane(row.lane)
    queue, cores = queue_named(queues, name), cores_by_project(tx)
    ahead, is_more = _ahead(lanes, queues, row, dict(cores))
    found = QueuePosition(
        queue=name,
        priority=row.priority + queue.priority,
        ahead=ahead,
        is_more=is_more,
        shares=_shares(lanes, queues, row, cores, may_see),
    )
    return _with_places(tx, found, queue, row)


def _lanes(tx: Tx, row: jobs.Row) -> dict[str, list[store.Row]] | None:
    """The line the job stands in, by lane: its own as far as it matters, of the others as much as is affordable."""
    if row.state == State.PENDING.value and row.blocked == BLOCKED_BY_QUEUE:
        names = [lane for lane in _readable(store.queued_lanes(tx)) if queue_of_lane(lane) == queue_of_lane(row.lane)]
        return {lane: store.queued_ahead(tx, lane, _rows_max(lane, row, names)) for lane in names}
    if row.is_ready and row.cluster_id is not None:
        names = _readable(store.ready_lanes_of_cluster(tx, row.cluster_id))
        return {lane: store.ready_ahead(tx, row.cluster_id, lane, _rows_max(lane, row, names)) for lane in names}
    return None


def _readable(lanes: list[str]) -> list[str]:
    """The others are of damaged rows, which nobody leases."""
    return [lane for lane in lanes if isinstance(lane, str)]


def _rows_max(lane: str, row: jobs.Row, names: list[str]) -> int:
    return AHEAD_MAX + 1 if lane == row.lane else max(1, min(AHEAD_MAX + 1, ROWS_MAX // len(names)))


def _ahead(
    lanes: dict[str, list[store.Row]], queues: Queues, row: jobs.Row, cores: dict[str, float]
) -> tuple[int, bool]:
    """How many come before it, and whether there may be more: taken one by one, each with the cores it would get."""
    waiting = {
        lane: [
            ordered_job_of(each, queue_named(queues, queue_of_lane(lane)))
            for each in rows
            if each.id == row.id or column_check(each._fields).is_readable(each)
        ]
        for lane, rows in lanes.items()
    }
    line = FairQueue.of(waiting.values(), cores)
    left = {lane: len(rows) for lane, rows in lanes.items()}
    ahead, is_more = 0, False
    while ahead < AHEAD_MAX and (each := line.next()) is not None:
        if each.id == row.id:
            return ahead, is_more
        ahead += 1
        line.give(each, each.row.cores)
        left[each.row.lane] -= 1
        # All that was read of a lane is before it: there may be some that were not read.
        is_more |= not left[each.row.lane] and len(lanes[each.row.lane]) == _rows_max(each.row.lane, row, list(lanes))
    return ahead, True


def _shares(
    lanes: dict[str, list[store.Row]],
    queues: Queues,
    row: jobs.Row,
    cores: Mapping[str, float],
    may_see: Callable[[str], bool],
) -> list[Share]:
    """What those in line have, the least first; the job's own project in any case."""
    found: dict[str, Share] = {}
    for lane in (row.lane, *sorted(lanes)):
        project = project_of_lane(lane)
        if project not in found and may_see(project):
            weight = queue_named(queues, queue_of_lane(lane)).weight_of(project)
            found[project] = Share(project, int(cores.get(project, 0)), weight)
    own = found.pop(project_of_lane(row.lane), None)
    others = sorted(found.values(), key=lambda each: (each.share, each.project))[: SHARES_MAX - 1]
    return sorted([*([own] if own else []), *others], key=lambda each: (each.share, each.project))


def _with_places(tx: Tx, found: QueuePosition, queue: Queue, row: jobs.Row) -> QueuePosition:
    project = project_of_lane(row.lane)
    if not queue.limits_project(project):
        return found
    taken = store.places_taken(tx, queue.counted(found.queue))
    return replace(
        found,
        limit=queue.limits.running,
        running=None if queue.limits.running is None else sum(places for places, _ in taken.values()),
        project_limit=queue.limits.projects.get(project),
        project_running=sum(places for lane, (places, _) in taken.items() if project_of_lane(lane) == project),
    )
