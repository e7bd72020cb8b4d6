"""Agents: lease and report with 50 that wait; and what 5,000 idle ones cost the server in memory and CPU."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from tests.programs import call

from bench import bed
from bench.table import Table

WAITING = 50
JOBS = 5000
IDLE = 5000
IDLE_S = 20
GRAPH = {
    "shapes": [{"type": "core"}, {"type": "node", "children": [[0, 10_000]]}, {"type": "x", "children": [[1, 10]]}]
}
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def measure(folder: Path) -> list[Table]:
    busy = Table(
        "Lease and report",
        f"{JOBS:,} jobs through {WAITING} agents that wait, each leasing up to 20 and reporting the end at once.",
        ["database", "jobs /s", "server CPU µs per job"],
    )
    for kind in bed.DATABASES:
        with bed.database(kind) as url, bed.server(folder / f"busy-{kind}", url) as server:
            rate, cpu_us = asyncio.run(_busy(server.url, server.pid))
            busy.add(kind, rate, f"{cpu_us:.0f}")
    idle = Table(
        "Idle agents",
        f"{IDLE:,} agents parked at one server on SQLite, for {IDLE_S} s; each polls again after 8 s.",
        ["agents", "memory each", "CPU of a core"],
    )
    with bed.server(folder / "idle", None) as server:
        each_kb, share = asyncio.run(_idle(server.url, server.pid))
        idle.add(f"{IDLE:,}", f"{each_kb:.1f} kB", f"{share:.1%}")
    return [busy, idle]


class Agent:
    """One agent as a bare connection."""

    def __init__(self, url: str, credential: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._credential = credential
        self._session = 0

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        answer = await self.poll(inventory=[], graph=GRAPH)
        self._session = answer["session"]

    async def poll(self, **message: object) -> dict[str, Any]:
        self.send(**message)
        return await self.receive()

    def send(self, **message: object) -> None:
        body = json.dumps({"incarnation": "b", "session": self._session, **message}).encode()
        head = (
            f"POST /v1/agents/poll HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._credential}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)

    async def receive(self) -> dict[str, Any]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        found: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        return found

    def close(self) -> None:
        self._writer.close()


async def _joined(url: str, count: int, clusters: int) -> list[Agent]:
    """Many at once, as after an outage: what they bring is committed and reckoned together."""
    some = asyncio.Semaphore(64)

    async def one(number: int) -> Agent:
        asked = {"cluster": f"c{number % clusters}", "name": f"a{number}", "journal": f"j{number}", "backend": "fake"}
        async with some:
            joined = await asyncio.to_thread(call, "POST", f"{url}/v1/agents/join", asked)
            agent = Agent(url, joined.json["credential"])
            await agent.open()
        return agent

    return await asyncio.gather(*(one(number) for number in range(count)))


async def _busy(url: str, pid: int) -> tuple[float, float]:
    agents = await _joined(url, WAITING, WAITING)
    body = {"jobs": [{"spec": {"command": ["true"]}}] * 1000}
    left = JOBS
    done = asyncio.Event()

    async def work(agent: Agent) -> None:
        nonlocal left
        reports: list[dict[str, object]] = []
        while left > 0:
            answer = await agent.poll(want=20, wait_s=2, reports=reports)
            left -= len(reports)
            if left <= 0:
                done.set()
            reports = [
                {"job": lease["job"], "fence": lease["fence"], "seen": "SUCCEEDED", "exit_code": 0}
                for lease in answer.get("leases", [])  # type: ignore[attr-defined]
            ]

    workers = [asyncio.ensure_future(work(agent)) for agent in agents]
    before, began = cpu_s(pid), time.monotonic()
    for _ in range(JOBS // 1000):
        await asyncio.to_thread(call, "POST", f"{url}/v1/jobs/bulk", body)
    await asyncio.wait_for(done.wait(), 120)
    took, cpu = time.monotonic() - began, cpu_s(pid) - before
    for worker in workers:
        worker.cancel()
    for agent in agents:
        agent.close()
    return JOBS / took, cpu / JOBS * 1e6


async def _idle(url: str, pid: int) -> tuple[float, float]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * IDLE)), hard))
    empty = memory_bytes(pid)
    agents = await _joined(url, IDLE, 10)

    async def park(agent: Agent) -> None:
        while True:
            await agent.poll(want=10, wait_s=50)  # the server parks it for less

    parked = [asyncio.ensure_future(park(agent)) for agent in agents]
    await asyncio.sleep(10)  # until the first looks are over
    before, memory = cpu_s(pid), memory_bytes(pid)
    await asyncio.sleep(IDLE_S)
    share = (cpu_s(pid) - before) / IDLE_S
    for poll in parked:
        poll.cancel()
    for agent in agents:
        agent.close()
    return (memory - empty) / IDLE / 1000, share


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
