"""Objects that the store has lost. The server notes them as missing, so that the next upload of them brings them back.

A read finds the loss: the object is not in the store, or has other bytes. Uploads and the leader are safe beside it:

- An object that was sent after the read had begun is not noted: it is in the store again.
- The rows of holders, trees and jobs stay. Only the question who must send what is answered otherwise.
- While a user holds a lost object, the store is asked for each object that this user need not send again: a store
  that lost one object has often lost all of them.
- A read that finds a lost object again, for instance after the operator restored the store, takes the note back.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from switchyard.errors import YardError
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_objects, file_trees

LOSSES_CHECKED_MAX = 10_000  # compared with the objects of a tree; with more, the tree is walked
log = structlog.get_logger()


def note_losses(context: Context, lost: Collection[bytes], *, found: Collection[bytes] = (), read_us: int) -> None:
    """Note what a read that began at `read_us` has learnt. `found`: objects that were noted as lost and are there.

    A database that cannot take the note does not fail the read: the next read notes it.
    """
    if not lost and not found:
        return

    def write(batch: Batch) -> list[bytes]:
        file_objects.loss_delete(batch.tx, found)
        return file_objects.loss_put(batch.tx, lost, read_us=read_us, now_us=batch.now_us)

    try:
        noted = context.committer.call(write)
    except YardError as exc:
        log.warning("lost objects were not noted", objects=len(lost), error=exc.inner)
        return
    if noted:
        log.error(
            "the store has lost objects of files",
            objects=len(noted),
            first=noted[0].hex(),
            next="the next upload of the same files brings them back; look at the disk, or at who else writes there",
        )


def has_losses(tx: Tx, root: bytes) -> bool:
    """Whether a sealed tree has lost an object, or may have: then it must be walked."""
    lost = file_objects.losses(tx, LOSSES_CHECKED_MAX + 1)
    return len(lost) > LOSSES_CHECKED_MAX or (bool(lost) and bool(file_trees.members_among(tx, root, lost)))


def owner_has_losses(tx: Tx, owner: str) -> bool:
    """Whether the store has lost an object that this user holds, or may have."""
    lost = file_objects.losses(tx, LOSSES_CHECKED_MAX + 1)
    return len(lost) > LOSSES_CHECKED_MAX or (bool(lost) and bool(file_objects.holdings(tx, owner, lost)))
