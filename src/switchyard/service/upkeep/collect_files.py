"""Remove files that no job needs: references of jobs that ended long ago, idle trees, idle objects, unknown objects.

Every step is safe against uploads, seals and submits at the same time:

- A use is stored again once it is older than half of the grace, and only what was not used for the whole grace is
  removed. So whoever was told that an object is there has half of the grace to seal a tree with it.
- A submit locks the row of its tree. The leader locks the row too, and then looks for references again.
- An object leaves the database first, with a row in `file_removals`, then the store. An upload that meets such a row,
  or one that is younger than the upload's beginning, is refused as busy, and the client sends it again.
- An object that only the store knows is first recorded as idle, so it is removed in the same way.
- An upload by a signed address of which nobody said that it is done is removed some time after the address has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import monotonic

from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import show_period
from switchyard.service.core.writes.batch import Batch
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.retention import is_paused
from switchyard.store.files import attempt_uploads, file_collection, file_objects
from switchyard.store.files.file_trees import common_digests

JOBS_MAX = 200  # per transaction, as trees and objects below
TREES_MAX = 100
OBJECTS_READ = 20_000  # objects that are compared with all trees at once
OBJECTS_MAX = 2000
PARTS_READ = 64  # rows of trees in memory at a time: 8 MiB
LISTED = 2000  # objects of the store that are read at once
REMOVALS_KEPT_US = 3_600_000_000  # longer than any upload takes
PAUSE_US_MAX = 600_000_000  # between two looks at what is idle
ROUND_S = 1.0  # length of one round; the next round continues
SWEEP_PARTS = 4  # a sweep of all objects begins so many times within a grace
EXPIRED = "these files were removed: files of a job are kept for {days} after its end (`files.keep`)"


@dataclass
class FileCollection:
    """The chore and its cursors. `go` does one bounded round."""

    after: bytes = b""  # the last object of the current sweep that was looked at
    swept_us: int | None = None  # when the last sweep began, on the steady clock
    is_sweeping: bool = False
    listed_after: bytes = b""
    listed_us: int | None = None
    is_listing: bool = False
    looked_us: int | None = None  # when the slow steps last began, on the steady clock
    removed: dict[str, int] = field(default_factory=dict)

    def go(self, context: Context, leadership: Leadership) -> bool:
        """Do one round. Returns whether there is more to do now. `removed` counts what was removed."""
        self.removed = {}
        if is_paused(context):
            return False
        until = monotonic() + ROUND_S
        is_left = False
        for step in (self._removals, *self._slow_steps(context)):
            while leadership.epoch is not None and step(context, leadership):
                if monotonic() > until:
                    is_left = True
                    break
        return is_left

    def _slow_steps(self, context: Context) -> tuple[Callable[[Context, Leadership], bool], ...]:
        """The steps that read many rows. They come again after a while, and while a sweep is not done."""
        limits = context.files.limits
        pause_us = min(PAUSE_US_MAX, limits.grace_us // 10, (limits.keep_us or PAUSE_US_MAX) // 10)
        now_us = context.steady_us()
        if not (self.is_sweeping or self.is_listing or self.looked_us is None or now_us - self.looked_us > pause_us):
            return ()
        self.looked_us = now_us
        # Removals again: what the sweep gave up leaves the store in the same round.
        return (
            self._jobs,
            self._trees,
            self._unknown,
            self._objects,
            self._removals,
            self._forget,
            self._uploads,
            self._abandoned,
        )

    def _jobs(self, context: Context, leadership: Leadership) -> bool:
        keep_us = context.files.limits.keep_us
        if keep_us is None:
            return False
        with context.database.read() as tx:
            before_us = context.now_us() - keep_us
            old = file_collection.job_ids_with_old_files(tx, ended_before_us=before_us, limit=JOBS_MAX)
        if not old:
            return False
        error = EXPIRED.format(days=show_period(keep_us))
        count = leadership.commit(
            context, lambda batch: file_collection.files_expire(batch.tx, old, error=error) or len(old), locks=old
        )
        return self._note("files of jobs", count)

    def _trees(self, context: Context, leadership: Leadership) -> bool:
        before_us = context.now_us() - context.files.limits.grace_us
        with context.database.read() as tx:
            idle = file_collection.idle_tree_owners(tx, used_before_us=before_us, limit=TREES_MAX)
        if not idle:
            return False
        pairs = set(idle)
        count = leadership.commit(
            context, lambda batch: file_collection.tree_owners_delete(batch.tx, pairs, used_before_us=before_us)
        )
        return self._note("trees", count)

    def _removals(self, context: Context, leadership: Leadership) -> bool:
        """Remove from the store what the database has given up. What a crash left is found here again."""
        with context.database.read() as tx:
            digests = file_collection.removals_open(tx, OBJECTS_MAX)
        if not digests:
            return False
        context.files.store.delete(digests)
        count = leadership.commit(
            context, lambda batch: file_collection.removals_settle(batch.tx, digests, now_us=batch.now_us)
        )
        return self._note("objects", count)

    def _objects(self, context: Context, leadership: Leadership) -> bool:
        """One page of the sweep of all objects, by hash."""
        if not self.is_sweeping:
            if not _is_due(context, self.swept_us, parts=SWEEP_PARTS):
                return False
            self.is_sweeping, self.swept_us, self.after = True, context.steady_us(), b""
        before_us = context.now_us() - context.files.limits.grace_us
        with context.database.read() as tx:
            page = file_objects.object_page(tx, self.after, OBJECTS_READ)
        if not page:
            self.is_sweeping = False
            return False
        sweep = _PageSweep.read(context, page, before_us)
        for first in range(0, len(sweep.objects), OBJECTS_MAX):
            part = sweep.objects[first : first + OBJECTS_MAX]
            leadership.commit(context, partial(sweep.delete, digests=part))
        self.after = page[-1][0]
        return True

    def _unknown(self, context: Context, leadership: Leadership) -> bool:
        """Record objects that the store has and the database does not know, as after a crash during an upload."""
        if not self.is_listing:
            if not _is_due(context, self.listed_us, parts=1):
                return False
            self.is_listing, self.listed_us, self.listed_after = True, context.steady_us(), b""
        before_us = context.now_us() - context.files.limits.grace_us
        listed = list(islice(context.files.store.list(self.listed_after), LISTED))
        if not listed:
            self.is_listing = False
            return False
        self.listed_after = listed[-1].digest
        old = {item.digest: item.size for item in listed if item.modified_us < before_us}
        with context.database.read() as tx:
            known = file_objects.object_sizes(tx, old)
        unknown = {digest: size for digest, size in old.items() if digest not in known}
        if unknown:
            count = leadership.commit(context, lambda batch: file_collection.objects_adopt(batch.tx, unknown))
            self._note("unknown objects", count)
            self.swept_us = None if not self.is_sweeping else self.swept_us  # they are removed by the next sweep
        return True

    def _abandoned(self, context: Context, leadership: Leadership) -> bool:  # noqa: ARG002  as all steps
        before_us = context.now_us() - context.files.abandoned_us
        count = context.files.store.drop_abandoned(before_us=before_us, limit=OBJECTS_MAX)
        return self._note("abandoned uploads", count)

    def _forget(self, context: Context, leadership: Leadership) -> bool:
        before_us = context.now_us() - REMOVALS_KEPT_US
        with context.database.read() as tx:
            if not file_collection.has_settled_removals(tx, before_us=before_us):
                return False
        count = leadership.commit(
            context, lambda batch: file_collection.removals_forget(batch.tx, before_us=before_us, limit=OBJECTS_MAX)
        )
        return count > 0

    def _uploads(self, context: Context, leadership: Leadership) -> bool:
        """Forget what agents sent for attempts long ago. The objects stay as long as somebody needs them."""
        before_us = context.now_us() - context.files.limits.grace_us
        with context.database.read() as tx:
            if not attempt_uploads.has_old_uploads(tx, before_us=before_us):
                return False
        count = leadership.commit(
            context, lambda batch: attempt_uploads.upload_delete_old(batch.tx, before_us=before_us, limit=OBJECTS_MAX)
        )
        return count > 0

    def _note(self, what: str, count: int) -> bool:
        if count:
            self.removed[what] = self.removed.get(what, 0) + count
        return count > 0


@dataclass(frozen=True)
class _PageSweep:
    """One page of objects: which users hold them without need, and which objects no tree has."""

    idle: dict[bytes, list[str]]  # users who hold an object, have not used it, and have no tree with it
    objects: list[bytes]  # with such users, or without any user and any tree
    loose: frozenset[bytes]  # in no tree at all
    sizes: dict[bytes, int]
    before_us: int

    @staticmethod
    def read(context: Context, rows: Sequence[tuple[bytes, int, int]], before_us: int) -> _PageSweep:
        first, last = rows[0][0], rows[-1][0]
        sizes = {digest: size for digest, size, _ in rows}
        with context.database.read() as tx:
            holders = [
                (bytes(row.digest), row.owner)
                for row in file_collection.holders_between(tx, first, last)
                if row.used_us < before_us
            ]
            idle_objects = {digest for digest, _, used_us in rows if used_us < before_us}
            candidates = sorted({digest for digest, _ in holders} | idle_objects)
            roots_of = _roots_of(context, candidates) if candidates else {}
            owners = file_collection.owners_of(tx, {root for roots in roots_of.values() for root in roots})
        idle: dict[bytes, list[str]] = {}
        for digest, owner in holders:
            if not any(owner in owners.get(root, ()) for root in roots_of.get(digest, ())):
                idle.setdefault(digest, []).append(owner)
        loose = frozenset(digest for digest in idle_objects if digest not in roots_of)
        return _PageSweep(idle, sorted(idle.keys() | loose), loose, sizes, before_us)

    def delete(self, batch: Batch, *, digests: list[bytes]) -> int:
        file_collection.objects_lock(batch.tx, digests)
        holders = [(digest, owner) for digest in digests for owner in self.idle.get(digest, ())]
        gone = file_collection.holders_delete(batch.tx, holders, used_before_us=self.before_us)
        freed = file_collection.sizes_by_owner(gone, self.sizes)
        file_objects.usage_add(batch.tx, {owner: -size for owner, size in freed.items()})
        loose = [digest for digest in digests if digest in self.loose]
        return file_collection.objects_delete(
            batch.tx, loose, used_before_us=self.before_us, now_us=batch.now_us
        ) + len(gone)


def _roots_of(context: Context, digests: list[bytes]) -> dict[bytes, set[bytes]]:
    """The trees that each of these objects belongs to. `digests`: sorted."""
    roots: dict[bytes, set[bytes]] = {}
    after = (b"", b"")
    while True:
        with context.database.read() as tx:
            parts = file_collection.parts_between(tx, digests[0], digests[-1], after=after, limit=PARTS_READ)
        for part in parts:
            for digest in common_digests(part.digests, digests):
                roots.setdefault(digest, set()).add(part.root)
        if len(parts) < PARTS_READ:
            return roots
        after = (parts[-1].root, parts[-1].first)


def _is_due(context: Context, last_us: int | None, *, parts: int) -> bool:
    return last_us is None or context.steady_us() - last_us > context.files.limits.grace_us // parts
