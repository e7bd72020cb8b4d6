"""Jobs that came in and wait for a cluster: who routes them must look after they came, and with what is known then.

A server decides by what it knows, and commits a moment later. In that moment the cluster that a job waits for may have
come, and the leader have looked at all that waits: without a word it would wait for the leader's next look of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.submit.newjob import JobInsert


class LetWait:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._by: tuple[int, int] | None = None  # what this server knew when the last one came, if nobody was told

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
        self._by = by

    def tell_leader(self) -> None:
        """By a server that learned something since: the leader knew it sooner perhaps, and looked before they came."""
        if self._by in (None, self._context.snapshots.versions):
            return
        self._by = None
        self._context.committer.call(lambda batch: batch.versions.add("pending"))
