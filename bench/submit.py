"""Submits over HTTP: single ones at several numbers of clients, bulk and arrays; beside one commit per request.

*One by one* is the same server with one commit per request. Slices of both are interleaved, so that a noisy neighbour
hits them alike.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench import bed
from bench.table import Table

CLIENTS = (1, 64, 256)
SLICE_S = 3
SLICES = 3
BULK = 1000
SPEC = {
    "command": ["/bin/sh", "-c", "echo hello from a job"],
    "env": {"A": "1", "B": "two"},
    "resources": {"cores": 2, "memory": "1GiB", "time_limit": "1h"},
}
JOB = {"spec": SPEC, "name": "bench", "labels": {"run": "7", "team": "physics"}}
MODES = {"durable": (), "one by one": ("--bench", "one-by-one")}
ABOUT = (
    f"wrk, one thread, {SLICES} slices of {SLICE_S} s each, interleaved; the median slice. *Durable*: 201 after the "
    "commit reached the disk. *One by one*: one commit per request."
)


def measure(folder: Path) -> list[Table]:
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    singles = Table(
        "Single submits over HTTP",
        ABOUT,
        ["database", "clients", "durable /s", "one by one /s", "times", "p50 ms", "p99 ms"],
    )
    many = Table(
        "Many at once, in jobs per second",
        f"4 clients. Bulk: {BULK} jobs a request. Array: {BULK} tasks a job. Slices as above.",
        ["database", "bulk /s", "arrays: tasks /s", "times bulk"],
    )
    for kind in bed.DATABASES:
        _measure_on(folder / kind, kind, singles, many)
    return [singles, many]


def _measure_on(folder: Path, kind: str, singles: Table, many: Table) -> None:
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        urls: dict[str, str] = {}
        for mode, extra in MODES.items():
            url = stack.enter_context(bed.database(kind))
            server = stack.enter_context(bed.server(folder / mode.replace(" ", "-"), url, *extra))
            urls[mode] = server.url
            for name in ("alpha", "beta", "gamma"):
                bed.join(server.url, name)
        script = _script(folder / "post.lua", JOB)
        for clients in CLIENTS:
            found = _interleaved(urls, clients, script, "/v1/jobs")
            rate, single = (found[mode][0] for mode in MODES)
            singles.add(
                kind,
                clients,
                rate,
                single,
                f"{rate / single:.1f}x",
                f"{found['durable'][1]:.1f}",
                f"{found['durable'][2]:.1f}",
            )
            _say(f"{kind} {clients} clients: {rate:,.0f}/s, {rate / single:.1f}x")
        durable = {"durable": urls["durable"]}
        bulk = _interleaved(durable, 4, _script(folder / "bulk.lua", {"jobs": [JOB] * BULK}), "/v1/jobs/bulk")
        arrays = _interleaved(durable, 4, _script(folder / "array.lua", JOB | {"array": f"0-{BULK - 1}"}), "/v1/jobs")
        jobs, tasks = bulk["durable"][0] * BULK, arrays["durable"][0] * BULK
        many.add(kind, jobs, tasks, f"{tasks / jobs:.0f}x")
        _say(f"{kind} bulk {jobs:,.0f}/s, arrays {tasks:,.0f}/s")


def _interleaved(urls: dict[str, str], clients: int, script: Path, path: str) -> dict[str, tuple[float, float, float]]:
    """The median slice of each: requests per second, p50 and p99 in ms."""
    slices: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in urls}
    for _ in range(SLICES):
        for mode, url in urls.items():
            slices[mode].append(wrk(url + path, clients=clients, script=script))
    return {mode: sorted(found)[len(found) // 2] for mode, found in slices.items()}


def wrk(url: str, *, clients: int, script: Path) -> tuple[float, float, float]:
    """One slice: requests per second, p50 and p99 in ms."""
    command = ["wrk", "-t1", f"-c{clients}", f"-d{SLICE_S}s", "--timeout", "20s", "--latency", "-s", str(script), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in said, said
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert rate, said
    return float(rate[1]), _ms(said, "50%"), _ms(said, "99%")


def _ms(said: str, line: str) -> float:
    found = re.search(rf"\s{line}\s+([\d.]+)(us|ms|s)", said)
    assert found, said
    return float(found[1]) * {"us": 0.001, "ms": 1, "s": 1000}[found[2]]


def _script(path: Path, body: object) -> Path:
    data = path.with_suffix(".json")
    data.write_text(json.dumps(body))
    path.write_text(
        f"local file = io.open('{data}', 'rb')\nwrk.body = file:read('*a')\nfile:close()\n"
        "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n"
    )
    return path


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
