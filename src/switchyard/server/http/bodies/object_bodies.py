"""Bodies and answers that carry many objects: read and sent in pieces, with few bytes in memory at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import structlog

from switchyard.errors import TooLarge, WrongMedia, YardError
from switchyard.model.files.file_frames import BODY_BYTES_MAX, MEDIA
from switchyard.model.files.file_tree import CHUNK_BYTES
from switchyard.model.files.files import StoredObjects
from switchyard.server.http.connections.asgi_messages import (
    PART_BYTES,
    USER_BYTES_HEADERS,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    ClientGone,
    header,
)
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.files.intake import GROUP_BYTES, ObjectIntake
from switchyard.service.files.reading import ObjectPlan, object_frames

PIECE_BYTES = 2**20  # handed to a thread together, and read from the store together
PIECES_MAX = 256  # … or so many of them: a client may send a body byte by byte, and each piece costs memory by itself
UPLOAD_BYTES_HELD = GROUP_BYTES + CHUNK_BYTES  # of one upload in memory: a group of objects, and the next object
_MEDIA_TYPES = (MEDIA.encode(), b"application/octet-stream")

log = structlog.get_logger()


async def read_objects(
    server: ServerRuntime,
    scope: AsgiScope,
    receive: AsgiReceive,
    owner: str,
    *,
    attempt: AgentAttempt | None = None,
) -> StoredObjects:
    """Store the objects of a body. What arrives before a mistake, or before the client is gone, is stored as well.

    `attempt`: an agent sends the objects for it.
    """
    media = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if media not in _MEDIA_TYPES:
        raise WrongMedia(
            f"The body is declared as {media[:80].decode('latin-1')!r}; objects are sent as {MEDIA}.",
            next_step=f"Send frames, with the header `Content-Type: {MEDIA}`.",
        )
    declared = header(scope, b"content-length")
    size = int(declared) if declared is not None and declared.isdigit() else BODY_BYTES_MAX
    if size > BODY_BYTES_MAX:
        raise TooLarge(
            f"The body has {size} bytes; the most here is {BODY_BYTES_MAX}.",
            next_step="Send fewer objects in one request.",
        )
    intake = ObjectIntake(server.context, owner, attempt)
    in_thread = server.workers.in_file_thread
    async with server.uploads.hold(scope, min(size, UPLOAD_BYTES_HELD)):
        await in_thread(intake.begin)
        try:
            await _feed(server, receive, intake)
            return await in_thread(intake.end)
        except (ClientGone, YardError):
            await in_thread(intake.salvage)
            raise


async def _feed(server: ServerRuntime, receive: AsgiReceive, intake: ObjectIntake) -> None:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            if pieces:
                await server.workers.in_file_thread(intake.feed, *pieces)
            raise ClientGone
        if piece := message.get("body", b""):
            pieces.append(piece)
            size += len(piece)
        is_over = not message.get("more_body")
        if size >= PIECE_BYTES or len(pieces) >= PIECES_MAX or (is_over and pieces):
            await server.workers.in_file_thread(intake.feed, *pieces)
            pieces, size = [], 0
        if is_over:
            return


async def send_objects(server: ServerRuntime, scope: AsgiScope, send: AsgiSend, plan: ObjectPlan) -> None:
    """Send the objects as frames. A store that fails before the first object is an error; later the answer is cut."""
    in_thread = server.workers.in_file_thread
    async with server.downloads.hold(scope, CHUNK_BYTES):
        frames, at = await in_thread(object_frames, server.context, plan, 0, bytes_max=PIECE_BYTES)
        headers = [(b"content-type", MEDIA.encode()), *USER_BYTES_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            for part in _parts(frames):
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0)  # other requests get their turn
            if at >= len(plan.digests):
                break
            try:
                frames, at = await in_thread(object_frames, server.context, plan, at, bytes_max=PIECE_BYTES)
            except YardError as exc:
                log.warning("an answer with files is cut off", error=exc.inner)
                raise ClientGone from exc  # the connection is closed, and the client asks again
        await send({"type": "http.response.body", "body": b""})


def _parts(frames: Sequence[bytes]) -> Iterator[memoryview]:
    """Divide what is sent without a copy of it."""
    for frame in frames:
        view = memoryview(frame)
        for begin in range(0, len(view), PART_BYTES):
            yield view[begin : begin + PART_BYTES]
