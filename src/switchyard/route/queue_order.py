"""The order of queued jobs: priority, then fair share among projects, then arrival; and ageing. Pure.

The same order is used for leases and for places in a limited queue.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RowT = TypeVar("RowT")
# bypassed jobs remembered, of all clusters together: far more than are at the heads of queues
BYPASSED_MAX = 10_000

QueueSortKey = tuple[int, bool, float, str]


@dataclass(frozen=True, slots=True)
class QueuedJob(Generic[RowT]):
    """One queued job. `row`: the caller's own data about it."""

    id: str
    project: str
    priority: int  # the sum of the job's and its queue's
    weight: float  # of its project, in its queue
    row: RowT
    is_aged: bool = False  # bypassed for too long: it comes first within its priority


@dataclass(slots=True)
class FairQueue(Generic[RowT]):
    """The jobs of several lanes, each lane in its own order, taken one at a time.

    Among equal priorities, the project with the fewest cores relative to its weight comes first; cores charged here
    count. Sort keys only grow, so a key is computed again only when its job reaches the top of the heap.
    """

    cores: dict[str, float] = field(default_factory=dict)  # project → cores it uses
    _lanes: list[Iterator[QueuedJob[RowT]]] = field(default_factory=list)  # jobs left, in order
    _heap: list[tuple[QueueSortKey, int, QueuedJob[RowT]]] = field(default_factory=list)

    @staticmethod
    def of(lanes: Iterable[Iterable[QueuedJob[RowT]]], cores: dict[str, float]) -> FairQueue[RowT]:
        """`cores`: cores that each project uses already. Several queues may share this dict and charge jobs to it."""
        line: FairQueue[RowT] = FairQueue(cores)
        line.add(lanes)
        return line

    def add(self, lanes: Iterable[Iterable[QueuedJob[RowT]]]) -> None:
        """Add further lanes."""
        self.add_ordered(iter(sorted(lane, key=lambda waiting: (-waiting.priority, waiting.id))) for lane in lanes)

    def add_ordered(self, lanes: Iterable[Iterator[QueuedJob[RowT]]]) -> None:
        """Add lanes whose jobs come in order. A lane is read only as far as its jobs are taken."""
        for lane in lanes:
            self._lanes.append(lane)
            self._push_next(len(self._lanes) - 1)

    def next(self) -> QueuedJob[RowT] | None:
        """Take the next job out of the queue."""
        while self._heap:
            key, lane, waiting = heapq.heappop(self._heap)
            if (now := self._key(waiting)) > key:
                heapq.heappush(self._heap, (now, lane, waiting))
                continue
            if lane >= 0:
                self._push_next(lane)
            return waiting
        return None

    def put_back(self, several: Iterable[QueuedJob[RowT]]) -> None:
        """Return jobs that were taken out but not started."""
        for waiting in several:
            heapq.heappush(self._heap, (self._key(waiting), -1, waiting))

    def give(self, waiting: QueuedJob[RowT], cores: float) -> None:
        """Add cores to the job's project, so that its fair share counts them."""
        self.cores[waiting.project] = self.cores.get(waiting.project, 0) + cores

    def _push_next(self, lane: int) -> None:
        if (waiting := next(self._lanes[lane], None)) is not None:
            heapq.heappush(self._heap, (self._key(waiting), lane, waiting))

    def _key(self, waiting: QueuedJob[RowT]) -> QueueSortKey:
        share = 0.0 if waiting.is_aged else self.cores.get(waiting.project, 0) / waiting.weight
        return (-waiting.priority, not waiting.is_aged, share, waiting.id)


class BypassTimes:
    """When each job that did not fit was first bypassed, by cluster. Bounded: drops the least recently bypassed."""

    def __init__(self, most: int = BYPASSED_MAX) -> None:
        self._since_us: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._most = most

    def note(self, cluster_id: str, job_id: str, now_us: int) -> None:
        """Record that the job did not fit just now."""
        key = (cluster_id, job_id)
        self._since_us.setdefault(key, now_us)
        self._since_us.move_to_end(key)
        if len(self._since_us) > self._most:
            self._since_us.popitem(last=False)

    def aged(self, cluster_id: str, job_ids: Iterable[str], *, now_us: int, ageing_us: int) -> frozenset[str]:
        """Return the jobs that have been bypassed for at least `ageing_us`."""
        if not self._since_us:
            return frozenset()
        latest_us = now_us - ageing_us
        return frozenset(job for job in job_ids if self._since_us.get((cluster_id, job), now_us) <= latest_us)

    def forget(self, cluster_id: str, job_id: str) -> None:
        self._since_us.pop((cluster_id, job_id), None)
