"""The memory of a server and an agent under a steady mix of requests: does it level off?"""

from __future__ import annotations

import http.client
import os
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.programs import call, start_agent, start_server

from bench.table import Table

DURATION_S = float(os.environ.get("BENCH_MEMORY_S", "300"))
SAMPLES = 12
STREAM_S = 20.0
GRAPH = {"nodes": 4, "each": {"core": 8, "memory": "16GiB"}}


class Mix:
    """The requests, and how often each comes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0  # of jobs
        self.recent: deque[str] = deque(maxlen=100)
        self.periods: dict[Callable[[], object], float] = {
            self.single: 0.2,
            self.bulk: 4.0,
            self.wait: 0.5,
            self.read: 0.5,
            self.cancel: 2.0,
            self.stream: STREAM_S,
        }

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = call(method, f"{self.url}/v1/jobs{path}", body)
        assert answer.status in (200, 201), answer.body[:300]
        return answer.json

    def submit(self, *command: str) -> str:
        self.count += 1
        return str(self.call("POST", "", {"spec": {"command": command}, "labels": {"run": str(self.count % 50)}})["id"])

    def single(self) -> None:
        self.recent.append(self.submit("echo", str(self.count)))

    def bulk(self) -> None:
        self.call("POST", "/bulk", {"jobs": [{"spec": {"command": ["true"]}}] * 20})
        self.count += 20

    def wait(self) -> None:
        self.call("GET", f"/{self.submit('true')}/wait?timeout_s=20")

    def read(self) -> None:
        job = random.choice([*self.recent, self.submit("true")])
        for path in (f"/{job}", f"/{job}/explain", f"/{job}/output?stream=stdout", "?limit=50", "?label=run%3D7"):
            self.call("GET", path)

    def cancel(self) -> None:
        self.call("POST", f"/{self.submit('sleep', '60')}/cancel", {})

    def stream(self) -> None:
        line = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=STREAM_S)
        line.request("GET", "/v1/events/stream")
        answer, end = line.getresponse(), time.monotonic() + STREAM_S
        while time.monotonic() < end and answer.read1(65_536):
            pass
        line.close()


def measure(folder: Path) -> list[Table]:
    table = Table(
        "Memory under a steady mix",
        "Single and bulk submits, waits, reads, cancels and a stream of events, about 14 jobs a second; SQLite and a "
        f"local agent. Memory: RssAnon, without mapped files. BENCH_MEMORY_S={DURATION_S:.0f}.",
        ["minutes", "jobs", "server MB", "agent MB", "database MB"],
    )
    # Not warm: a program that tests start in a hurry has modules of other programs in its memory.
    with (
        start_server(folder, is_warm=False) as server,
        start_agent(folder, server.url, "alpha", graph=GRAPH, is_warm=False) as agent,
    ):
        mix, began = Mix(server.url), time.monotonic()
        with ThreadPoolExecutor(len(mix.periods)) as pool:
            loops = [pool.submit(_repeat, work, period_s, began) for work, period_s in mix.periods.items()]
            for sample in range(SAMPLES + 1):
                time.sleep(max(0.0, began + sample * DURATION_S / SAMPLES - time.monotonic()))
                size = (folder / "server-data/switchyard.db").stat().st_size / 2**20
                minutes = f"{(time.monotonic() - began) / 60:.0f}"
                table.add(minutes, float(mix.count), _memory_mb(server.pid), _memory_mb(agent.pid), size)
            for loop in loops:
                loop.result()
    return [table]


def _repeat(work: Callable[[], object], period_s: float, began: float) -> None:
    turn = began
    while time.monotonic() < began + DURATION_S:
        work()
        turn = max(turn + period_s, time.monotonic() - period_s)  # after a delay, make up for one turn only
        time.sleep(max(0.0, turn - time.monotonic()))


def _memory_mb(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("RssAnon:"))
