"""Jobs that came in and wait for a cluster: who routes them must look after they came, and with what is known then.

A server decides by what it knows, and commits a moment later. In that moment the cluster that a job waits for may have
come, and the leader have looked at all that waits: without a word it would wait for the leader's next look of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.errors import YardError
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.submit.new_job import JobInsert


class PendingWakeup:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._by: tuple[int, int] | None = None  # what this server knew when the first came of whom nobody was told

    def note(self, batch: Batch, writes: Iterable[JobInsert]) -> None:
        """Of what is inserted with this batch. What was decided by an outdated world is looked at at once."""
        waiting = {write.waits_by for write in writes if write.waits_by is not None}
        if not waiting:
            return
        now = self._context.snapshots.versions
        if waiting != {now}:
            batch.versions.add("pending")
        batch.settled.append(lambda: self._came(now))

    def _came(self, by: tuple[int, int]) -> None:
        self._by = self._by or by

    def take(self) -> bool:
        """Whether some came before this server learned what it knows now; once."""
        if self._by in (None, self._context.snapshots.versions):
            return False
        self._by = None
        return True

    def tell_leader(self) -> None:
        """By a server that learned something since: the leader knew it sooner perhaps, and looked before they came."""
        by = self._by
        if not self.take():
            return
        try:
            self._context.committer.call(lambda batch: batch.versions.add("pending"))
        except YardError:
            self._by = by
            raise
