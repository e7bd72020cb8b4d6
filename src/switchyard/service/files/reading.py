"""Read objects of the trees of a job. A hash alone opens nothing: it must belong to a tree of a visible job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from switchyard.errors import NotFound
from switchyard.model.files.file_frames import FrameKind, encode_head
from switchyard.model.files.files import ObjectsQuery
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import SIGNED_FROM_BYTES
from switchyard.service.core.rights import Actor
from switchyard.service.files.possession import note_losses
from switchyard.service.lifecycle.visibility import visible_job
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_objects, file_trees

FRAME_BYTES = 40  # of a frame besides its object
LARGE_FRAME_BYTES = 2**20  # such an object is sent as it was read: a copy of it costs more than one more part


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """The objects of one answer, all of which the caller may read.

    `sizes`: of those that are stored. `losses`: of which an earlier read found that the store has lost them.
    """

    digests: Sequence[bytes]
    sizes: dict[bytes, int]
    losses: frozenset[bytes] = frozenset()
    is_read_by_server: bool = False  # no addresses


def plan_job_read(context: Context, actor: Actor, ref: str, query: ObjectsQuery) -> ObjectPlan:
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        return _plan(tx, row.id, query, kinds={file_trees.IN, file_trees.OUT})


def plan_agent_read(context: Context, attempt: AgentAttempt, query: ObjectsQuery) -> ObjectPlan:
    """An agent reads only what the job brings along, for its own attempts."""
    with context.database.read() as tx:
        return _plan(tx, attempt.row.id, query, kinds={file_trees.IN})


def _plan(tx: Tx, job_id: str, query: ObjectsQuery, *, kinds: set[str]) -> ObjectPlan:
    root = bytes.fromhex(query.root)
    digests = [bytes.fromhex(name) for name in query.objects]
    if not file_trees.ref_kinds(tx, job_id, root) & kinds:
        raise NotFound(
            f"Job {job_id} has no files {query.root}.",
            next_step="`GET /v1/jobs/{job}/files` names its trees. Files of an ended job are removed after a while.",
        )
    members = file_trees.members_among(tx, root, digests)
    for digest in digests:
        if digest not in members:
            raise NotFound(f"The files {query.root} of job {job_id} have no object {digest.hex()}.")
    lost = frozenset(file_objects.losses_among(tx, digests))
    return ObjectPlan(digests, file_objects.object_sizes(tx, digests), lost, query.is_read_by_server)


def object_frames(context: Context, plan: ObjectPlan, at: int, *, bytes_max: int) -> tuple[list[bytes], int]:
    """The frames of the next objects, at least one, of about so many bytes; and where to go on.

    The frames come in parts to send one after the other: small frames together, a large object as it was read.
    """
    end, size = at, 0
    while end < len(plan.digests) and (end == at or size < bytes_max):
        size += plan.sizes.get(plan.digests[end], 0) + FRAME_BYTES
        end += 1
    asked = plan.digests[at:end]
    read_us = context.now_us()
    lost: list[bytes] = []
    addresses = {digest: address for digest in asked if (address := _address(context, plan, digest)) is not None}
    contents = context.files.store.get_many([digest for digest in asked if digest not in addresses])
    parts: list[bytes] = []
    small: list[bytes] = []
    for digest in asked:
        kind, data = _frame(addresses.get(digest), contents)
        if kind is FrameKind.ABSENT:
            lost.append(digest)
        small.append(encode_head(kind, digest, len(data)))
        if len(data) < LARGE_FRAME_BYTES:
            small.append(data)
            continue
        parts += [b"".join(small), data]
        small = []
    if small:
        parts.append(b"".join(small))
    found = plan.losses.intersection(asked).difference(lost, addresses)
    note_losses(context, [digest for digest in lost if digest not in plan.losses], found=found, read_us=read_us)
    return parts, end


def _address(context: Context, plan: ObjectPlan, digest: bytes) -> str | None:
    """Where a large object can be read without this server, if its store has such addresses."""
    # The server itself looks for an object that was lost: its store may have it again.
    if plan.sizes.get(digest, 0) < SIGNED_FROM_BYTES or plan.is_read_by_server or digest in plan.losses:
        return None
    return context.files.store.signed_get(digest, valid_s=context.files.signed_s)


def _frame(address: str | None, contents: Iterator[bytes | ObjectMissing | ObjectDamaged]) -> tuple[FrameKind, bytes]:
    if address is not None:
        return FrameKind.ADDRESS, address.encode()
    content = next(contents)
    if isinstance(content, bytes):
        return FrameKind.CONTENT, content
    return FrameKind.ABSENT, str(content).encode()
