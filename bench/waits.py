"""Submits of an address that has 2,000 clients waiting for a job, on a server with the usual limit of open files."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.processes import PATIENCE_S, free_port, until
from tests.programs import YARD, Server, isolated_env

from bench import bed
from bench.table import Table
from switchyard import Client
from switchyard.sdk.transport.retry_backoff import RetryBackoff

FILES = 1_024  # open files of a server that is started without a setting
WAITERS = 2_000
SUBMITTERS = 4
MEASURE_S = 8.0
SLICES = 3  # beside the waiters


def measure(folder: Path) -> list[Table]:
    table = Table(
        f"Submits beside {WAITERS:,} waiters of the same address",
        f"A server on SQLite that may open {FILES:,} files. {SUBMITTERS} clients submit single jobs, each on a new "
        "connection: alone, beside clients that wait for a job, from their first requests on, and alone again, for "
        f"{MEASURE_S:.0f} s each. All retry as the SDK does. *Open*: waits without an answer, at the end. *Share*: of "
        "the mean rate alone.",
        ["waiters", "open", "submits /s", "share", "p50 ms", "p99 ms"],
    )
    port = free_port()
    command = ["prlimit", f"--nofile={FILES}:{FILES}", "--", *YARD, "server", "--no-auth"]
    command += ["--data", str(folder / "data"), "--http", f"127.0.0.1:{port}"]
    with Server(command, folder, name="server", env=isolated_env(folder)) as server:
        server.url = f"http://127.0.0.1:{port}"
        bed.join(server.wait_ready().url, "idle")
        rows = [("0", 0, *_submits(server.url))]
        process, open_waits = _start_waiters(server.url)
        for number in range(1, SLICES + 1):
            figures = _submits(server.url)
            rows.append((f"{WAITERS:,}, slice {number}", open_waits.value, *figures))
        process.terminate()
        process.join()
        rows.append(("0 again", 0, *_submits(server.url)))
    alone = statistics.mean([rows[0][2], rows[-1][2]])
    for waiters, unanswered, rate, p50, p99 in rows:
        table.add(waiters, unanswered, rate, f"{rate / alone:.2f}", p50, p99)
    return [table]


def _submits(url: str) -> tuple[float, str, str]:
    """Submit for a while. Returns the accepted jobs per second, and p50 and p99 of their times in ms."""
    began = time.monotonic()

    def submit(_number: int) -> list[float]:
        times = []
        while (submitted := time.monotonic()) < began + MEASURE_S:
            with Client(url, retry_s=PATIENCE_S) as client:
                client.submit(["true"], cluster="idle")
            times.append(time.monotonic() - submitted)
        return times

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        times = [took for each in pool.map(submit, range(SUBMITTERS)) for took in each]
    rate = len(times) / (time.monotonic() - began)
    centiles = statistics.quantiles(times, n=100)
    return rate, f"{centiles[49] * 1000:.0f}", f"{centiles[98] * 1000:.0f}"


def _start_waiters(url: str) -> tuple[Any, Any]:
    """Let many clients wait for one job. Returns their process and the number of waits that are not answered."""
    with Client(url) as client:
        job = client.submit(["true"], cluster="idle").id
    context = multiprocessing.get_context("spawn")
    asked, open_waits = context.Value(ctypes.c_int), context.Value(ctypes.c_int)
    process = context.Process(target=_run_waiters, args=(url, job, asked, open_waits), daemon=True)
    process.start()
    until(lambda: asked.value >= WAITERS, PATIENCE_S, "as many waits as waiters are sent")
    return process, open_waits


def _run_waiters(url: str, job: str, asked: Any, open_waits: Any) -> None:
    async def run() -> None:
        await asyncio.gather(*(_wait_forever(url, job, asked, open_waits) for _ in range(WAITERS)))

    asyncio.run(run())


async def _wait_forever(url: str, job: str, asked: Any, open_waits: Any) -> None:
    address, backoff = urlsplit(url), RetryBackoff(float("inf"))
    request = f"GET /v1/jobs/{job}/wait?timeout_s=60 HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    while True:
        retry_after_s, writer = 0.0, None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(request)
            asked.value, open_waits.value = asked.value + 1, open_waits.value + 1
            try:
                retry_after_s = await _retry_after_s(reader)
            finally:
                open_waits.value -= 1
        await asyncio.sleep(backoff.next_pause_s(retry_after_s) or 0.0)
        if writer is not None:  # kept until now: the SDK closes no connection that was answered
            writer.close()


async def _retry_after_s(reader: asyncio.StreamReader) -> float:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    await reader.readexactly(int(fields["content-length"]))
    return float(fields.get("retry-after", 0))
