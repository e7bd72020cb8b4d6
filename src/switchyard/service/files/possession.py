"""Which objects a user holds. Knowing the hash of an object is not a right to it: only who sent it may name it.

An agent acts for the owner of a job, but not for all that the owner holds: for an attempt it may name what it sent for
that attempt, and the job's inputs. Else an agent could publish, or guess, what the owner has elsewhere.

The store may have lost objects. A read finds the loss: the object is not there, or has other bytes. It is noted as
missing, so that the next upload brings it back. Uploads and the leader are safe beside it:

- An object that was sent after the read had begun is not noted: it is in the store again.
- The rows of holders, trees and jobs stay. Only the question who must send what is answered otherwise.
- While a user holds a lost object, the store is asked for each object that this user need not send again: a store
  that lost one object has often lost all of them.
- A read that finds a lost object again, for instance after the operator restored the store, takes the note back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog

from switchyard.errors import Unavailable, YardError
from switchyard.model.files.files import MissingAnswer
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.files.upload_addresses import upload_addresses
from switchyard.store.engine.database import Tx
from switchyard.store.files import attempt_uploads, file_objects, file_trees

R = TypeVar("R")
LARGE_WRITE_WAIT_S = 60  # large writes of other users come in between
# A client does not send an object that it is told to be there. So this is a use. It is stored again after this time, so
# that a release of unused uploads leaves the object alone.
TOLD_STALE_US = 10_000_000
LOSSES_CHECKED_MAX = 10_000  # compared with the objects of a tree; with more, the tree is walked
log = structlog.get_logger()


def missing_objects(
    context: Context,
    owner: str,
    objects: Sequence[str],
    sizes: Sequence[int] = (),
    *,
    attempt: AgentAttempt | None = None,
) -> MissingAnswer:
    """Return the objects that this user must send. Objects that the user holds count as used from now on.

    `sizes`, in the order of the objects: large objects get addresses, if the store has any. Objects without a size get
    none. `attempt`: an agent asks for it.
    """
    asked = {bytes.fromhex(name): name for name in objects}
    stale_us = min(TOLD_STALE_US, context.files.limits.stale_us)
    held = stored_objects(context, owner, asked, stale_us=stale_us, attempt=attempt)
    missing = {name: digest for digest, name in asked.items() if digest not in held}
    missing_sizes = {missing[name]: size for name, size in zip(objects, sizes, strict=False) if name in missing}
    return MissingAnswer(
        list(missing),
        upload_addresses(context, owner, missing_sizes, sender=sender_of(owner, attempt), is_agent=attempt is not None),
    )


def held_objects(
    context: Context,
    owner: str,
    digests: Iterable[bytes],
    *,
    stale_us: int | None = None,
    attempt: AgentAttempt | None = None,
) -> dict[bytes, int]:
    """The objects among these that a user holds, with their sizes. They stay for at least half of the grace.

    `stale_us`: a use that is older is stored again; by default half of the grace. `attempt`: only objects that it may
    name.
    """
    asked = list(digests)
    before_us = context.now_us() - (context.files.limits.stale_us if stale_us is None else stale_us)
    with context.database.read() as tx:
        if attempt is not None:
            asked = list(attempt_uploads.nameable_objects(tx, attempt.row.id, attempt.fence, asked))
        sizes = file_objects.held_sizes(tx, owner, asked)
        stale = file_objects.holder_touch_due(tx, owner, sizes, used_before_us=before_us) if sizes else []
    if stale:

        def touch(batch: Batch) -> set[bytes]:
            return file_objects.holder_touch(batch.tx, owner, stale, now_us=batch.now_us)

        # Objects that the leader removed in between are missing.
        for digest in set(stale) - large_write(context, owner, touch):
            sizes.pop(digest, None)
    return sizes


def sender_of(owner: str, attempt: AgentAttempt | None) -> str:
    """Who uploads to the object store. No two senders share an upload, so an upload shows that its sender had it."""
    return owner if attempt is None else f"{owner} {attempt.row.id} {attempt.fence}"


def stored_objects(
    context: Context,
    owner: str,
    digests: Iterable[bytes],
    *,
    stale_us: int | None = None,
    attempt: AgentAttempt | None = None,
) -> dict[bytes, int]:
    """The same as `held_objects`. If the store has lost objects of this user, it is asked for each of these.

    A store that lost one object has often lost many. One submit of the same files brings all of them back.
    """
    sizes = held_objects(context, owner, digests, stale_us=stale_us, attempt=attempt)
    with context.database.read() as tx:
        is_doubtful = bool(sizes) and owner_has_losses(tx, owner)
    if not is_doubtful:
        return sizes
    read_us = context.now_us()
    stored = context.files.store.has(sizes)
    note_losses(context, sizes.keys() - stored, read_us=read_us)
    return {digest: size for digest, size in sizes.items() if digest in stored}


def large_write(context: Context, owner: str, function: Any) -> Any:
    """Run a write of many rows, and wait for its commit: users take turns, and small writes go in between."""
    future: Future[Any] = Future()

    def settle(result: Any) -> None:
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    context.committer.put_large(BatchCall(function), settle, user=owner)
    try:
        return future.result(LARGE_WRITE_WAIT_S)
    except TimeoutError as exc:
        raise Unavailable("The database is too slow; the change may still happen.") from exc


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
