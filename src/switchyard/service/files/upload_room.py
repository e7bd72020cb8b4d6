"""Check the limits before a user sends the first byte, and free what the user has uploaded and does not use.

A client that is refused, or killed between upload and submit, leaves objects that no tree has, or a tree that no job
needs. They count until the end of the grace. If they are in the way of an upload of the same user, they are released
here: this upload is what the user wants now. The user no longer holds them then. Objects that nobody holds are removed
by the leader, because only a sweep knows whether a tree of another user has them.

A release and a seal of one user exclude each other. The release sets `released_us` in the user's row of usage, and a
seal that began before is refused as busy. A release that finds a tree sealed since its beginning is undone.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from switchyard.errors import Busy, LimitReached
from switchyard.model.files.files import UploadQuery, UploadRoom
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.model.rules.access import Role
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import files_refusal
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.possession import large_write
from switchyard.service.files.upload_addresses import user_limit_refusal
from switchyard.store.files import file_collection, file_objects, file_outputs, file_trees
from switchyard.store.files.file_trees import common_digests

OBJECTS_READ = 20_000  # objects of the user that are compared with all trees of the user at once
PARTS_READ = 64  # rows of trees in memory at a time: 8 MiB
TREES_MAX = 1000  # released at once
# What was sent or sealed within this time may be part of an upload that goes on, or about to be submitted.
UNDER_WAY_US = 30_000_000
# An agent may send output files of the user's jobs for longer. What was used since its beginning is left alone, but not
# for longer than this: an upload that hangs does not keep the user's room for ever.
OUTPUTS_US_MAX = 3_600_000_000


class ReleasedBytes(NamedTuple):
    """What was taken from a user, and what may be part of an upload that goes on."""

    bytes: int
    under_way: int


def check_upload(context: Context, actor: Actor, query: UploadQuery) -> UploadRoom:
    """Say whether an upload fits. Raises LimitReached if it is certain that it does not."""
    limits = context.files.limits
    largest = max((tree.bytes for tree in query.trees), default=0)
    if limits.tree_bytes and largest > limits.tree_bytes:
        context.tally.uploads_refused.add("tree_bytes")
        raise files_refusal("tree_bytes", limits.tree_bytes, f"the files of this tree take {show_bytes(largest)}")
    free = context.files.store.free_bytes()
    if free is not None and query.new_bytes > free:
        if not query.is_exact:
            return UploadRoom(fits=False)
        raise _disk_refusal(context, query.new_bytes, free)
    if query.project is not None and limits.project_bytes and actor.may_project(Role.SUBMIT, query.project):
        _refuse_over_project(context, query, query.project)
    with context.database.read() as tx:
        used = file_objects.usage_get(tx, actor.id)
    if not limits.user_bytes or not query.new_bytes or used + query.new_bytes <= limits.user_bytes:
        return UploadRoom(fits=True)
    if not query.is_exact:
        return UploadRoom(fits=False)
    released = release_unused(context, actor.id)
    if released.bytes:
        return UploadRoom(fits=False, released=released.bytes)
    if released.under_way and used - released.under_way + query.new_bytes <= limits.user_bytes:
        raise Busy(
            f"{show_bytes(released.under_way)} of this user are being uploaded, or were a moment ago. If nothing uses "
            f"them, they are released within {UNDER_WAY_US // 1_000_000} s, or once output files of this user's jobs "
            "are sent.",
            next_step="Ask again in a few seconds.",
        )
    raise user_limit_refusal(context, used, query.new_bytes)


def _disk_refusal(context: Context, new_bytes: int, free: int) -> LimitReached:
    context.tally.uploads_refused.add("disk")
    return LimitReached(
        f"These files take {show_bytes(new_bytes)} more, and the disk of the server that keeps files has room for "
        f"{show_bytes(free)}; the rest of it is a reserve.",
        next_step="Send less, or ask the operator of the server to free space or to keep files on another disk.",
    )


def _refuse_over_project(context: Context, query: UploadQuery, project: str) -> None:
    limit = context.files.limits.project_bytes
    with context.database.read() as tx:
        used, _ = file_trees.project_usage(tx, project)
        sizes = {bytes.fromhex(tree.root): tree.bytes for tree in query.trees}
        new = sum(size for root, size in sizes.items() if not file_trees.project_has(tx, project, root))
    if new and used + new > limit:
        context.tally.uploads_refused.add("project_bytes")
        why = f"the files of project {project} take {show_bytes(used)}, and these take {show_bytes(new)}"
        raise files_refusal("project_bytes", limit, why)


def release_unused(context: Context, owner: str) -> ReleasedBytes:
    """Take from a user the objects that are in none of the user's trees; if there are none, also of unused trees.

    Raises Busy if the server has just done it for this user.
    """
    with context.files.releases.look(owner, context.steady_us):
        return _release(context, owner)


def _release(context: Context, owner: str) -> ReleasedBytes:
    before_us = _unused_before_us(context, owner)
    released = _release_objects(context, owner, before_us)
    with context.database.read() as tx:
        idle = file_collection.idle_tree_owners(tx, used_before_us=before_us, limit=TREES_MAX, owner=owner)
        young = file_collection.idle_tree_bytes(tx, owner, used_since_us=before_us)
    if released.bytes or released.under_way or not idle:
        return ReleasedBytes(released.bytes, released.under_way + young)
    large_write(
        context,
        owner,
        lambda batch: file_collection.tree_owners_delete(batch.tx, set(idle), used_before_us=before_us),
    )
    return _release_objects(context, owner, before_us)


def _unused_before_us(context: Context, owner: str) -> int:
    """Objects and trees that were used since are part of an upload that goes on, by the user or by an agent."""
    now_us = context.now_us()
    with context.database.read() as tx:
        begins = file_outputs.uploading_since(tx, owner, since_us=now_us - OUTPUTS_US_MAX)
    live = [begin_us for agent, begin_us in begins.items() if agent is None or context.snapshots.is_live(agent)]
    return min([now_us - UNDER_WAY_US, *live])


def _release_objects(context: Context, owner: str, before_us: int) -> ReleasedBytes:
    released, under_way, after, began_us = 0, 0, b"", context.now_us()
    while True:
        with context.database.read() as tx:
            page = file_collection.holders_of(tx, owner, after, OBJECTS_READ)
        if not page:
            return ReleasedBytes(released, under_way)
        loose = sorted(set(page) - _in_trees(context, page, owner))
        if loose:
            take = partial(_take_from, owner=owner, digests=loose, before_us=before_us, began_us=began_us)
            freed: ReleasedBytes = large_write(context, owner, take)
            released, under_way = released + freed.bytes, under_way + freed.under_way
        after = page[-1]


def _in_trees(context: Context, digests: list[bytes], owner: str) -> set[bytes]:
    """Those of these objects that are in a tree of the user. `digests`: sorted."""
    found: set[bytes] = set()
    after = (b"", b"")
    while True:
        with context.database.read() as tx:
            parts = file_collection.parts_between(
                tx, digests[0], digests[-1], after=after, limit=PARTS_READ, owner=owner
            )
        for part in parts:
            found |= common_digests(part.digests, digests)
        if len(parts) < PARTS_READ:
            return found
        after = (parts[-1].root, parts[-1].first)


def _take_from(batch: Batch, *, owner: str, digests: list[bytes], before_us: int, began_us: int) -> ReleasedBytes:
    # Lost objects count as used bytes too.
    held = file_objects.object_sizes(batch.tx, file_objects.holdings(batch.tx, owner, digests))
    gone = file_collection.holders_delete(batch.tx, [(item, owner) for item in digests], used_before_us=before_us)
    freed = sum(held[digest] for digest, _ in gone)
    if gone:
        # The last lock, as in an upload, which locks objects, holders and usage.
        file_objects.usage_release(batch.tx, owner, freed, now_us=batch.now_us)
        if file_trees.has_sealed_since(batch.tx, owner, began_us):
            raise Busy("Another upload of this user ended at this moment.")
    return ReleasedBytes(freed, sum(held.values()) - freed)
