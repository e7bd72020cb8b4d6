"""Queue usage: cores per project, places in use, and the position of a waiting job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeVar

from msgspec.structs import replace

from switchyard.model.job.blocker import Blocker
from switchyard.model.job.job import State
from switchyard.model.rules.queue import (
    AHEAD_MAX,
    Lane,
    Queue,
    QueuePosition,
    Queues,
    Share,
    is_counted_lane,
    queue_named,
)
from switchyard.route.queue_order import FairQueue, QueuedJob
from switchyard.service.core.context import Context
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.job_columns import is_readable
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.rules import queues as store

CORES_CACHE_US = 1_000_000  # core counts are cached this long; leases given by other servers show up after it
READ_SHARE = 20  # reading the counts takes at most a twentieth of the time: a slow read is cached longer
# Jobs of a lane that are read at once to find the position of one job. The first page has twice what the lane gives if
# all lanes give the same, so that most lanes need one query.
PAGE_MIN, PAGE_MAX, PAGE_GROWTH = 8, 512, 4
SHARES_MAX = 20  # projects shown for one job


class _ReadPage(Protocol):
    """Reads the first jobs of a lane, or those behind `after`."""

    def __call__(self, limit: int, /, *, after: store.OrderedJob | None) -> list[store.OrderedJob]: ...


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
        project = Lane.read(lane).project
        totals[project] = totals.get(project, 0.0) + cores
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
    queues, name = context.snapshots.laid.layout.queues, Lane.read(row.lane).queue
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


def _lanes(tx: Tx, row: JobRow) -> dict[str, _ReadPage] | None:
    """Return a function for each lane of jobs that compete with this job: it reads the lane's jobs page by page."""
    if row.state == State.PENDING.value and row.blocked == Blocker.QUEUE:
        queue = Lane.read(row.lane).queue
        names = [lane for lane in _readable(store.queued_lanes(tx)) if Lane.read(lane).queue == queue]
        return {lane: partial(store.queued_ahead, tx, lane) for lane in names}
    if row.is_ready and row.cluster_id is not None:
        names = _readable(store.ready_lanes_of_cluster(tx, row.cluster_id))
        return {lane: partial(store.ready_ahead, tx, row.cluster_id, lane) for lane in names}
    return None


def _readable(lanes: list[str]) -> list[str]:
    """Drop the lanes of damaged rows. Such jobs are never leased."""
    return [lane for lane in lanes if isinstance(lane, str)]


def _ahead(lanes: Mapping[str, _ReadPage], queues: Queues, row: JobRow, cores: dict[str, float]) -> tuple[int, bool]:
    """Return how many jobs come before this job, and whether there may be more.

    It takes jobs in lease order and counts the cores of each job for its project, as real leases would.
    """
    fair_queue: FairQueue[store.OrderedJob] = FairQueue(cores)
    size = min(PAGE_MAX, PAGE_MIN + 2 * AHEAD_MAX // max(1, len(lanes)))
    fair_queue.add_ordered(
        _ordered_jobs(read_page, queue_named(queues, Lane.read(lane).queue), job_id=row.id, size=size)
        for lane, read_page in lanes.items()
    )
    for ahead in range(AHEAD_MAX):
        queued = fair_queue.next()
        if queued is None:
            return ahead, True  # another transaction has just taken the job
        if queued.id == row.id:
            return ahead, False
        fair_queue.give(queued, queued.row.cores)
    return AHEAD_MAX, True


def _ordered_jobs(
    read_page: _ReadPage, queue: Queue, *, job_id: str, size: int
) -> Iterator[QueuedJob[store.OrderedJob]]:
    """Yield the jobs of a lane, read in pages. `size`: of the first page."""
    last: store.OrderedJob | None = None
    while True:
        rows = read_page(size, after=last)
        for queued in rows:
            if queued.id == job_id or is_readable(queued):
                yield ordered_job_of(queued, queue)
        if len(rows) < size:
            return
        size, last = min(size * PAGE_GROWTH, PAGE_MAX), rows[-1]


def _shares(
    lanes: Iterable[str],
    queues: Queues,
    row: JobRow,
    cores: Mapping[str, float],
    may_see: Callable[[str], bool],
) -> list[Share]:
    """Return the shares of the waiting projects, lowest first. SHARES_MAX never cuts off the job's own project."""
    shares: dict[str, Share] = {}
    for lane in (row.lane, *sorted(lanes)):
        project = Lane.read(lane).project
        if project not in shares and may_see(project):
            weight = queue_named(queues, Lane.read(lane).queue).weight_of(project)
            shares[project] = Share(project, int(cores.get(project, 0)), weight)
    job_share = shares.pop(Lane.read(row.lane).project, None)
    others = sorted(shares.values(), key=lambda entry: (entry.share, entry.project))[: SHARES_MAX - 1]
    return sorted([*([job_share] if job_share else []), *others], key=lambda entry: (entry.share, entry.project))


def _with_places(tx: Tx, position: QueuePosition, queue: Queue, row: JobRow) -> QueuePosition:
    project = Lane.read(row.lane).project
    if not queue.limits_project(project):
        return position
    taken = store.places_taken(tx, queue.counted(position.queue))
    return replace(
        position,
        limit=queue.limits.running,
        running=None if queue.limits.running is None else sum(places for places, _ in taken.values()),
        project_limit=queue.limits.projects.get(project),
        project_running=sum(places for lane, (places, _) in taken.items() if Lane.read(lane).project == project),
    )
