"""Queue usage: cores per project, places in use, and the position of a waiting job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from msgspec.structs import replace

from switchyard.model.blocker import Blocker
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
from switchyard.service.core.context import Context
from switchyard.store import queues as store
from switchyard.store.database import Tx
from switchyard.store.job_columns import is_readable
from switchyard.store.job_rows import JobRow

CORES_CACHE_US = 1_000_000  # core counts are cached this long; leases given by other servers show up after it
READ_SHARE = 20  # reading the counts takes at most a twentieth of the time: a slow read is cached longer
ROWS_MAX = 10_000  # jobs read to find the position of one job
SHARES_MAX = 20  # projects shown for one job


class ProjectCores:
    """Cached count of the leased cores of each project, on all clusters and in all queues."""

    def __init__(self) -> None:
        self._cores: dict[str, float] = {}
        self._until_us = 0

    def cores(self, tx: Tx, now_us: int) -> dict[str, float]:
        """Return the cores by project. The caller may add cores it leases; they count until the next read."""
        if now_us >= self._until_us:
            began = time.perf_counter()
            self._cores = cores_by_project(tx)
            took_us = int((time.perf_counter() - began) * 1_000_000)
            self._until_us = now_us + max(CORES_CACHE_US, READ_SHARE * took_us)
        return self._cores


def cores_by_project(tx: Tx) -> dict[str, float]:
    totals: dict[str, float] = {}
    for lane, cores in store.leased_cores_by_lane(tx).items():
        if not isinstance(lane, str) or not is_counted_lane(lane):
            continue
        totals[project_of_lane(lane)] = totals.get(project_of_lane(lane), 0.0) + cores
    return totals


class OrderedRow(Protocol):
    """The columns of a job that its place in the order depends on. Several queries return such rows."""

    @property
    def id(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def priority(self) -> int: ...


OrderedRowT = TypeVar("OrderedRowT", bound=OrderedRow)


def ordered_job_of(row: OrderedRowT, queue: Queue, *, is_aged: bool = False) -> QueuedJob[OrderedRowT]:
    return QueuedJob(row.id, row.project, row.priority + queue.priority, queue.weight_of(row.project), row, is_aged)


def queue_position(
    context: Context, tx: Tx, row: JobRow, *, may_see: Callable[[str], bool] = lambda _project: True
) -> QueuePosition | None:
    """Return the position of a job that waits for a place or for a lease, or None if it waits for neither.

    `may_see` says whether the reader may see the share of a project.
    """
    lanes = _lanes(tx, row)
    if lanes is None:
        return None
    queues, name = context.snapshots.laid.layout.queues, queue_of_lane(row.lane)
    queue, cores = queue_named(queues, name), cores_by_project(tx)
    ahead, is_more = _ahead(lanes, queues, row, dict(cores))
    position = QueuePosition(
        queue=name,
        priority=row.priority + queue.priority,
        ahead=ahead,
        is_more=is_more,
        shares=_shares(lanes, queues, row, cores, may_see),
    )
    return _with_places(tx, position, queue, row)


def _lanes(tx: Tx, row: JobRow) -> dict[str, list[store.OrderedJob]] | None:
    """Return the jobs that compete with this job, by lane. Other lanes share ROWS_MAX rows, to bound the read."""
    if row.state == State.PENDING.value and row.blocked == Blocker.QUEUE:
        names = [lane for lane in _readable(store.queued_lanes(tx)) if queue_of_lane(lane) == queue_of_lane(row.lane)]
        return {lane: store.queued_ahead(tx, lane, _rows_max(lane, row, names)) for lane in names}
    if row.is_ready and row.cluster_id is not None:
        names = _readable(store.ready_lanes_of_cluster(tx, row.cluster_id))
        return {lane: store.ready_ahead(tx, row.cluster_id, lane, _rows_max(lane, row, names)) for lane in names}
    return None


def _readable(lanes: list[str]) -> list[str]:
    """Drop the lanes of damaged rows. Such jobs are never leased."""
    return [lane for lane in lanes if isinstance(lane, str)]


def _rows_max(lane: str, row: JobRow, names: list[str]) -> int:
    return AHEAD_MAX + 1 if lane == row.lane else max(1, min(AHEAD_MAX + 1, ROWS_MAX // len(names)))


def _ahead(
    lanes: dict[str, list[store.OrderedJob]], queues: Queues, row: JobRow, cores: dict[str, float]
) -> tuple[int, bool]:
    """Return how many jobs come before this job, and whether there may be more.

    It takes jobs in lease order and counts the cores of each job for its project, as real leases would.
    """
    waiting = {
        lane: [
            ordered_job_of(queued, queue_named(queues, queue_of_lane(lane)))
            for queued in rows
            if queued.id == row.id or is_readable(queued)
        ]
        for lane, rows in lanes.items()
    }
    fair_queue = FairQueue.of(waiting.values(), cores)
    remaining = {lane: len(rows) for lane, rows in lanes.items()}
    ahead, is_more = 0, False
    while ahead < AHEAD_MAX and (queued := fair_queue.next()) is not None:
        if queued.id == row.id:
            return ahead, is_more
        ahead += 1
        fair_queue.give(queued, queued.row.cores)
        remaining[queued.row.lane] -= 1
        # All jobs read from this lane come first: the lane may have further jobs that were not read.
        is_more |= not remaining[queued.row.lane] and len(lanes[queued.row.lane]) == _rows_max(
            queued.row.lane, row, list(lanes)
        )
    return ahead, True


def _shares(
    lanes: dict[str, list[store.OrderedJob]],
    queues: Queues,
    row: JobRow,
    cores: Mapping[str, float],
    may_see: Callable[[str], bool],
) -> list[Share]:
    """Return the shares of the waiting projects, lowest first. SHARES_MAX never cuts off the job's own project."""
    shares: dict[str, Share] = {}
    for lane in (row.lane, *sorted(lanes)):
        project = project_of_lane(lane)
        if project not in shares and may_see(project):
            weight = queue_named(queues, queue_of_lane(lane)).weight_of(project)
            shares[project] = Share(project, int(cores.get(project, 0)), weight)
    job_share = shares.pop(project_of_lane(row.lane), None)
    others = sorted(shares.values(), key=lambda entry: (entry.share, entry.project))[: SHARES_MAX - 1]
    return sorted([*([job_share] if job_share else []), *others], key=lambda entry: (entry.share, entry.project))


def _with_places(tx: Tx, position: QueuePosition, queue: Queue, row: JobRow) -> QueuePosition:
    project = project_of_lane(row.lane)
    if not queue.limits_project(project):
        return position
    taken = store.places_taken(tx, queue.counted(position.queue))
    return replace(
        position,
        limit=queue.limits.running,
        running=None if queue.limits.running is None else sum(places for places, _ in taken.values()),
        project_limit=queue.limits.projects.get(project),
        project_running=sum(places for lane, (places, _) in taken.items() if project_of_lane(lane) == project),
    )
