"""Who comes next: priority, then fair share among projects, then arrival; and who was passed by for too long.

Pure. The same order holds where leases are given, and among the jobs that wait for a place in a limited queue.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RowT = TypeVar("RowT")
# jobs remembered as passed by, of all clusters together: far more than stand at the head of a line
BYPASSED_MAX = 10_000

QueueSortKey = tuple[int, bool, float, str]


@dataclass(frozen=True, slots=True)
class QueuedJob(Generic[RowT]):
    """One job in line. `row`: whatever the caller knows it by."""

    id: str
    project: str
    priority: int  # the job's and its queue's
    weight: float  # of its project, in its queue
    row: RowT
    is_aged: bool = False  # others passed it for too long: it comes first among its priority


@dataclass(slots=True)
class FairQueue(Generic[RowT]):
    """The jobs of several lanes, each lane in its own order, taken one at a time.

    Of equal priority the project comes first that has the fewest cores for its weight, those given from here included.
    Keys only grow while cores are given, so a key is looked at again when it comes up, and not before.
    """

    cores: dict[str, float] = field(default_factory=dict)  # project → cores it has
    _lanes: list[list[QueuedJob[RowT]]] = field(default_factory=list)  # what is left of each, the next one last
    _heap: list[tuple[QueueSortKey, int, QueuedJob[RowT]]] = field(default_factory=list)

    @staticmethod
    def of(lanes: Iterable[Iterable[QueuedJob[RowT]]], cores: dict[str, float]) -> FairQueue[RowT]:
        """`cores`: what each project has of them already; several lines may share it, and add to it what they give."""
        line: FairQueue[RowT] = FairQueue(cores)
        line.add(lanes)
        return line

    def add(self, lanes: Iterable[Iterable[QueuedJob[RowT]]]) -> None:
        """More that stand in line."""
        for lane in lanes:
            self._lanes.append(sorted(lane, key=lambda waiting: (-waiting.priority, waiting.id), reverse=True))
            self._push_next(len(self._lanes) - 1)

    def next(self) -> QueuedJob[RowT] | None:
        """Take the next one out of the line."""
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
        """Those that were looked at and not taken."""
        for waiting in several:
            heapq.heappush(self._heap, (self._key(waiting), -1, waiting))

    def give(self, waiting: QueuedJob[RowT], cores: float) -> None:
        """Its project has so many more."""
        self.cores[waiting.project] = self.cores.get(waiting.project, 0) + cores

    def _push_next(self, lane: int) -> None:
        if self._lanes[lane]:
            waiting = self._lanes[lane].pop()
            heapq.heappush(self._heap, (self._key(waiting), lane, waiting))

    def _key(self, waiting: QueuedJob[RowT]) -> QueueSortKey:
        share = 0.0 if waiting.is_aged else self.cores.get(waiting.project, 0) / waiting.weight
        return (-waiting.priority, not waiting.is_aged, share, waiting.id)


class BypassTimes:
    """Since when jobs that did not fit are passed by others, by cluster. Bounded: the longest unseen is forgotten."""

    def __init__(self, most: int = BYPASSED_MAX) -> None:
        self._since_us: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._most = most

    def note(self, cluster_id: str, job_id: str, now_us: int) -> None:
        """It did not fit just now."""
        key = (cluster_id, job_id)
        self._since_us.setdefault(key, now_us)
        self._since_us.move_to_end(key)
        if len(self._since_us) > self._most:
            self._since_us.popitem(last=False)

    def aged(self, cluster_id: str, job_ids: Iterable[str], *, now_us: int, ageing_us: int) -> frozenset[str]:
        """Those of these that were passed for so long."""
        if not self._since_us:
            return frozenset()
        latest_us = now_us - ageing_us
        return frozenset(job for job in job_ids if self._since_us.get((cluster_id, job), now_us) <= latest_us)

    def forget(self, cluster_id: str, job_id: str) -> None:
        self._since_us.pop((cluster_id, job_id), None)
