"""Seal a tree: check that all of it is stored and held by the user, then keep it for the jobs to come.

A sealed tree has a row of its own, so a submit checks one row. The check and the write are not one transaction, because
a tree may have a million objects. The leader removes nothing in between: objects of the tree count as used for at least
half of the grace, and a seal that takes longer is refused.
"""

from __future__ import annotations

from functools import partial

from switchyard.errors import Busy, Unavailable
from switchyard.model.cluster.idset import INDEX_MAX, IdSet
from switchyard.model.files.files import TreeAnswer
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import files_refusal
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.lost_objects import has_losses, note_losses
from switchyard.service.files.possession import held_objects, large_write, stored_objects
from switchyard.service.files.tree_walk import TreeWalk, WalkedTree
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.files import attempt_uploads, file_objects, file_trees
from switchyard.store.files.file_trees import TreeRow


def seal_tree(context: Context, owner: str, root: str, *, attempt: AgentAttempt | None = None) -> TreeAnswer:
    """Seal a tree for a user, or say what must be sent first. A sealed tree costs one read and one look.

    `attempt`: an agent seals outputs for it. Each object of the tree must be one that the attempt may name, whatever
    the owner has sealed before.
    """
    digest = bytes.fromhex(root)
    sealed = _sealed_already(context, owner, digest) if attempt is None else None
    if sealed is not None:
        return TreeAnswer(root, sealed.files, sealed.size)
    began_us = context.now_us()
    walk = TreeWalk(
        partial(held_objects, context, owner, attempt=attempt),
        partial(_read, context),
        partial(stored_objects, context, owner, attempt=attempt),
    )
    walked = walk.run(digest)
    if walked.missing:
        return TreeAnswer(root, missing=[missing.hex() for missing in walked.missing])
    limit = context.files.limits.tree_bytes
    if limit and walked.size > limit:
        context.tally.uploads_refused.add("tree_bytes")
        raise files_refusal("tree_bytes", limit, f"the files of this tree take {show_bytes(walked.size)}")

    def write(batch: Batch) -> None:
        _seal(batch, context=context, owner=owner, began_us=began_us, walked=walked, root=digest)
        if attempt is not None:
            attempt_uploads.upload_seal(batch.tx, attempt.row.id, attempt.fence, digest, now_us=batch.now_us)

    large_write(context, owner, write)
    return TreeAnswer(root, walked.files, walked.size)


def _sealed_already(context: Context, owner: str, root: bytes) -> TreeRow | None:
    with context.database.read() as tx:
        tree = file_trees.tree_of_owner(tx, owner, root)
        if tree is not None and has_losses(tx, root):
            return None  # the walk says what must be sent again
    if tree is not None and not _is_root_stored(context, root):
        return None
    if tree is None or tree.used_us >= context.now_us() - context.files.limits.stale_us:
        return tree
    is_kept = context.committer.call(lambda batch: file_trees.tree_touch(batch.tx, owner, root, now_us=batch.now_us))
    return tree if is_kept else None


def _is_root_stored(context: Context, root: bytes) -> bool:
    """Whether the store still has the root: a store that was emptied is noticed here. True if the store is away."""
    try:
        return bool(context.files.store.has([root]))
    except Unavailable:
        return True


def _seal(batch: Batch, *, context: Context, owner: str, began_us: int, walked: WalkedTree, root: bytes) -> None:
    if batch.now_us - began_us > context.files.limits.stale_us:
        raise Busy("The check of the tree took so long that its objects may be removed meanwhile.")
    if file_objects.usage_is_released_since(batch.tx, owner, began_us):
        raise Busy("Objects of this user were released while the tree was checked.")
    indexes = str(IdSet.of(index for index in walked.indexes if index <= INDEX_MAX))
    tree = TreeRow(root, walked.files, walked.size, indexes)
    file_trees.tree_put(batch.tx, tree, sorted(walked.members), [owner], now_us=batch.now_us)


def _read(context: Context, digest: bytes) -> bytes | None:
    """The bytes of a folder. None: the store has lost it, and the client sends it again."""
    read_us = context.now_us()
    try:
        return context.files.store.get(digest)
    except (ObjectMissing, ObjectDamaged):
        note_losses(context, [digest], read_us=read_us)
        return None
