"""The pieces of an upload on their way to a thread: bounded in bytes and in number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from switchyard.server.http.bodies.object_bodies import PIECE_BYTES, PIECES_MAX, _feed
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.files.intake import ObjectIntake


@pytest.mark.parametrize(("size", "step"), [(5 * PIECES_MAX + 7, 1), (3 * PIECE_BYTES + 7, PIECE_BYTES // 4), (0, 1)])
def test_few_pieces_wait_for_a_thread(size: int, step: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    messages = [
        {"type": "http.request", "body": body[begin : begin + step], "more_body": True}
        for begin in range(0, len(body), step)
    ]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    taken: list[tuple[bytes, ...]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def in_file_thread(call: Callable[..., None], *pieces: bytes) -> None:
        call(*pieces)

    server = cast("ServerRuntime", SimpleNamespace(workers=SimpleNamespace(in_file_thread=in_file_thread)))
    intake = cast("ObjectIntake", SimpleNamespace(feed=lambda *pieces: taken.append(pieces)))
    asyncio.run(_feed(server, receive, intake))
    assert b"".join(piece for pieces in taken for piece in pieces) == body
    assert max(map(len, taken), default=0) <= PIECES_MAX
    assert max((sum(map(len, pieces)) for pieces in taken), default=0) < PIECE_BYTES + step
