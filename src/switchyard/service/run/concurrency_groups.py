"""Enforce concurrency groups while jobs are leased: count running jobs, and park jobs of full groups."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.service.core.writes.batch import Batch
from switchyard.store.jobs import concurrency_groups as store
from switchyard.store.jobs.leases import LeaseCandidate


class ConcurrencyGroups:
    """The groups of the queued jobs. The count of each group is read under a lock that all servers take."""

    def __init__(self, batch: Batch, rows: Iterable[LeaseCandidate]) -> None:
        self._batch = batch
        self._parked: dict[str, list[str]] = {}  # job ids by reason
        names = sorted({row.crowd for row in rows if row.crowd is not None})
        if names:
            store.concurrency_group_lock(batch.tx, names)
        self._live = store.concurrency_group_live_counts(batch.tx, names) if names else {}

    def is_locked(self, row: LeaseCandidate) -> bool:
        """Return whether the job's group is locked. Locking further groups later could deadlock two servers."""
        return row.crowd is None or row.crowd in self._live

    def limit(self, row: LeaseCandidate, size: int) -> int:
        """Return how many of `size` tasks the job's group allows now. If none is allowed, note the job to be parked."""
        if row.crowd is None or not size:
            return size
        assert row.crowd_max is not None, "require_readable_candidates has checked it"
        free = max(0, row.crowd_max - self._live[row.crowd])
        if not free:
            reason = f"waits: {row.crowd_max} jobs of workflow {row.workflow} run, and no more may (max_parallelism)"
            self._parked.setdefault(reason, []).append(row.id)
        return min(size, free)

    def add_running(self, row: LeaseCandidate, count: int) -> None:
        if row.crowd is not None:
            self._live[row.crowd] += count

    def park(self) -> None:
        for reason, job_ids in self._parked.items():
            store.concurrency_group_park(self._batch.tx, job_ids, reason)
