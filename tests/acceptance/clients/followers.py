"""Many clients of one user that wait on the server at once: plain HTTP on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.processes import PATIENCE_S, until

OPEN_S = CLOSE_S = PATIENCE_S


class Followers:
    """Each follower asks for its path again as soon as it is answered, as `yard logs -f` does."""

    def __init__(self, url: str, token: str, paths: Sequence[str], *, again: bool = True) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._token = token
        self._paths = paths
        self._again = again
        self.sent = 0  # requests that were written
        self.begun: Counter[int] = Counter()  # statuses of answers whose headers came; a stream has no end
        self.statuses: Counter[int] = Counter()  # of answers that came to their end
        self.bodies: list[bytes] = []  # of answers that are not 200
        self.headers: dict[str, str] = {}  # of the last answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="followers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_S)

    def wait_sent(self, count: int) -> None:
        """Until so many requests were written."""
        until(lambda: self.sent >= count, OPEN_S, f"{count} followers have asked")

    def _run(self) -> None:
        self._loop.run_until_complete(self._all())

    async def _all(self) -> None:
        self._stop = asyncio.Event()
        tasks = [asyncio.create_task(self._follow(path)) for path in self._paths]
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, path: str) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        request = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self._token}\r\n\r\n".encode()
        try:
            while True:
                writer.write(request)
                self.sent += 1
                status, self.headers = await _headers(reader)
                self.begun[status] += 1
                body = await _body(reader, self.headers)
                self.statuses[status] += 1
                if status != 200:
                    self.bodies.append(body)
                if not self._again:
                    return
        finally:
            writer.close()


async def _headers(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(head.split(" ", 2)[1])
    return status, dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:] if ": " in line)


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    while await reader.read(65_536):  # a stream: until the server ends it
        pass
    return b""


def median(call: Callable[[], object], *, times: int) -> float:
    """Of so many calls, how long the middle one took, in seconds."""
    return sorted(_spent(call) for _ in range(times))[times // 2]


def _spent(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
