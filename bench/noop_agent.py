"""An agent that runs nothing: it reports each leased attempt as SUCCEEDED, with one stored tree as its output files."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import literals_pb2
from tests.programs import call
from tests.service.files.trees import a_tree

from bench.agents import GRAPH

SENDERS = 16  # connections on which the agent tells of output files
REPORTS = 500  # of one poll


class Connection:
    """A bare connection to the server."""

    def __init__(self, url: str, credential: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._credential = int(port), credential

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def post(self, path: str, body: bytes, kind: str = "application/json") -> dict[str, Any]:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._credential}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        found = await self._reader.readexactly(length)
        assert answer.startswith(b"HTTP/1.1 20"), (answer, found)
        said: dict[str, Any] = json.loads(found)
        return said

    def close(self) -> None:
        self._writer.close()


@dataclass
class NoOpAgent:
    """An agent whose jobs end with their lease, all with the same output files."""

    poll: Connection
    senders: list[Connection]
    session: int = 0
    latencies: list[float] = field(default_factory=list)  # from the end of a node to the next lease
    _root: str = ""
    left: int = 0  # attempts whose output files are not stored yet
    told: int = 0  # attempts whose output files are stored
    _told_at: float = 0.0
    _waiting: asyncio.Queue[tuple[str, int]] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._tell(sender)) for sender in self.senders]
        try:
            while True:
                answer = await self.ask(want=1000, wait_s=5)
                now, leases = time.perf_counter(), answer.get("leases", [])
                if leases and self._told_at:
                    self.latencies.append(now - self._told_at)
                    self._told_at = 0.0
                await self._end([one for lease in leases for one in _attempts(lease)])
        finally:
            for task in tasks:
                task.cancel()

    async def _end(self, attempts: list[tuple[str, int]]) -> None:
        if attempts and not self._root:
            await self._upload(*attempts[0])
        for first in range(0, len(attempts), REPORTS):
            part = attempts[first : first + REPORTS]
            reports = [{"job": job, "fence": fence, "seen": "SUCCEEDED", "exit_code": 0} for job, fence in part]
            await self.ask(reports=reports)
            self.left += len(part)
            for one in part:
                self._waiting.put_nowait(one)

    async def _tell(self, sender: Connection) -> None:
        while True:
            job, fence = await self._waiting.get()
            body = {"job": job, "fence": fence, "state": "ready", "root": self._root}
            self._told_at = time.perf_counter()
            await sender.post("/v1/agents/outputs", json.dumps(body).encode())
            self.left -= 1
            self.told += 1

    async def _upload(self, job: str, fence: int) -> None:
        literals = literals_pb2.LiteralMap()
        literals.literals["o0"].scalar.primitive.integer = 1
        tree = a_tree({"flyte-io": {"out": {"outputs.pb": literals.SerializeToString()}}})
        query = f"?job={job}&fence={fence}"
        await self.senders[0].post(f"/v1/agents/files/objects{query}", tree.frames(), "application/octet-stream")
        sealed = await self.senders[0].post(
            f"/v1/agents/files/trees{query}", json.dumps({"root": tree.root.hex()}).encode()
        )
        assert not sealed.get("missing"), sealed
        self._root = tree.root.hex()

    async def ask(self, **message: object) -> dict[str, Any]:
        body = {"incarnation": "b", "session": self.session, **message}
        return await self.poll.post("/v1/agents/poll", json.dumps(body).encode())


def _attempts(lease: dict[str, Any]) -> list[tuple[str, int]]:
    count = 1 if lease.get("lo") is None else lease["hi"] - lease["lo"] + 1
    return [(lease["job"], lease["fence"] + number) for number in range(count)]


@asynccontextmanager
async def noop_agent(url: str) -> AsyncIterator[NoOpAgent]:
    """An agent at work, of the cluster `noop`."""
    asked = {"cluster": "noop", "name": "noop", "journal": "noop", "backend": "fake"}
    joined = await asyncio.to_thread(call, "POST", f"{url}/v1/agents/join", asked)
    made = [await Connection(url, joined.json["credential"]).open() for _ in range(1 + SENDERS)]
    agent = NoOpAgent(made[0], made[1:])
    agent.session = (await agent.ask(inventory=[], graph=GRAPH))["session"]
    running = asyncio.create_task(agent.run())
    try:
        yield agent
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        for connection in made:
            connection.close()
