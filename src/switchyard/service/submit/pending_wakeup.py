"""Wake the leader for new pending jobs.

A server decides from its snapshot and commits later. In between, a cluster may come up and the leader may route all
pending jobs. Without a notice, the new job would wait for the leader's next periodic round.
"""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.errors import YardError
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.submit.new_job import JobInsert


class PendingWakeup:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._versions: tuple[int, int] | None = None  # snapshot versions at the first unannounced pending job

    def note(self, batch: Batch, writes: Iterable[JobInsert]) -> None:
        """Note the pending jobs of this batch. Jobs decided from a stale snapshot wake the leader immediately."""
        decided_at = {write.pending_at_versions for write in writes if write.pending_at_versions is not None}
        if not decided_at:
            return
        current = self._context.snapshots.versions
        if decided_at != {current}:
            batch.topics.add(Topic.PENDING)
        batch.settled.append(lambda: self._set_versions(current))

    def _set_versions(self, versions: tuple[int, int]) -> None:
        self._versions = self._versions or versions

    def take(self) -> bool:
        """Return once whether pending jobs were inserted under an older snapshot than the current one."""
        if self._versions in (None, self._context.snapshots.versions):
            return False
        self._versions = None
        return True

    def tell_leader(self) -> None:
        """Wake the leader if the snapshot changed since: the leader may have routed before the jobs were inserted."""
        versions = self._versions
        if not self.take():
            return
        try:
            self._context.committer.call(lambda batch: batch.topics.add(Topic.PENDING))
        except YardError:
            self._versions = versions
            raise
