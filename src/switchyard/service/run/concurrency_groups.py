"""Concurrency groups while leases are given: how many jobs of each run, and which jobs wait for that."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.service.committer import Batch
from switchyard.store import concurrency_groups as store
from switchyard.store import leases


class ConcurrencyGroups:
    """The crowds of the jobs in line: how many of each run, counted under a lock that all servers take."""

    def __init__(self, batch: Batch, rows: Iterable[leases.Row]) -> None:
        self._batch = batch
        self._parked: dict[str, list[str]] = {}  # why → jobs
        names = sorted({row.crowd for row in rows if row.crowd is not None})
        if names:
            store.concurrency_group_lock(batch.tx, names)
        self._live = store.concurrency_group_live_counts(batch.tx, names) if names else {}

    def knows(self, row: leases.Row) -> bool:
        """Whether its crowd is locked. Another one is not locked later: two servers could wait for each other."""
        return row.crowd is None or row.crowd in self._live

    def most(self, row: leases.Row, size: int) -> int:
        """How many of a job's tasks its crowd leaves room for; one for which there is none is parked."""
        if row.crowd is None or not size:
            return size
        spare: int = max(0, row.crowd_max - self._live[row.crowd])
        if not spare:
            said = f"waits: {row.crowd_max} jobs of workflow {row.workflow} run, and no more may (max_parallelism)"
            self._parked.setdefault(said, []).append(row.id)
        return min(size, spare)

    def take(self, row: leases.Row, count: int) -> None:
        if row.crowd is not None:
            self._live[row.crowd] += count

    def park(self) -> None:
        for said, job_ids in self._parked.items():
            store.concurrency_group_park(self._batch.tx, job_ids, said)
