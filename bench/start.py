"""From submit to the process started, with an agent that waits: the time from the POST to the job's first line."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from tests.programs import call, start_agent

from bench import bed
from bench.table import Table

JOBS = 200
WARM = 10
ABOUT = (
    f"{JOBS} jobs one after the other, local backend, the agent parked. From just before the POST to the process's "
    "first write into a pipe; all on one machine. *Raw*: fork and exec of the same shell without Switchyard."
)


def measure(folder: Path) -> list[Table]:
    table = Table(
        "Submit to process started", ABOUT, ["database", "p50 ms", "p90 ms", "p99 ms", "max ms", "raw p50 ms"]
    )
    for kind in bed.DATABASES:
        with bed.database(kind) as url, bed.server(folder / kind, url) as server:
            graph = {"nodes": 1, "each": {"core": 64, "memory": "64GiB"}}
            with start_agent(folder / kind, server.url, "alpha", graph=graph):
                times = [_one(folder, server.url) for _ in range(WARM + JOBS)][WARM:]
        raw = statistics.median(_raw() for _ in range(50))
        cuts = statistics.quantiles(times, n=100)
        cells = (cuts[49], cuts[89], cuts[98], max(times), raw)
        table.add(kind, *(f"{value * 1000:.1f}" for value in cells))
    return [table]


def _one(folder: Path, url: str) -> float:
    fifo = folder / "started"
    if not fifo.exists():
        os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    keep = os.open(fifo, os.O_WRONLY)  # so that the reader waits instead of seeing an end
    try:
        began = time.monotonic()
        spec = {"command": ["/bin/sh", "-c", f"echo > {fifo}"]}
        answer = call("POST", f"{url}/v1/jobs", {"spec": spec})
        assert (answer.status, answer.json["state"]) == (201, "ASSIGNED"), answer.body
        os.read(reader, 1)
        took = time.monotonic() - began
        # The next one starts when this one is over, so that each finds the agent parked.
        call("GET", f"{url}/v1/jobs/{answer.json['id']}/wait?timeout_s=30")
        return took
    finally:
        os.close(reader)
        os.close(keep)


def _raw() -> float:
    began = time.monotonic()
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        "/bin/sh", ["sh", "-c", f"echo >&{writer}"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writer, writer)]
    )
    os.read(reader, 1)
    took = time.monotonic() - began
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    return took
