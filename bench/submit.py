"""Single submits per second over HTTP: durable, and with the commit left out, interleaved in one run."""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from bench import bed
from bench.table import Table

CLIENTS = (1, 64, 256)
SLICE_S = 3
SLICES = 3
BODY = (
    '{"spec":{"command":["/bin/sh","-c","echo hello from a job"],"env":{"A":"1","B":"two"},'
    '"resources":{"cores":2,"memory":"1GiB","time_limit":"1h"}},"name":"bench","labels":{"run":"7","team":"physics"}}'
)
ABOUT = (
    f"wrk, one thread, {SLICES} slices of {SLICE_S} s each, interleaved; the median slice. *Durable*: 201 after the "
    "commit reached the disk. *Commit left out*: the same server answers without the database."
)


def measure(folder: Path) -> list[Table]:
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    script = folder / "post.lua"
    script.write_text(f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '{BODY}'\n")
    table = Table(
        "Single submits over HTTP",
        ABOUT,
        ["database", "clients", "durable /s", "commit left out /s", "share", "p50 ms", "p99 ms"],
    )
    for kind in bed.DATABASES:
        with contextlib.ExitStack() as stack:
            url = stack.enter_context(bed.database(kind))
            durable = stack.enter_context(bed.server(folder / f"{kind}-durable", url))
            without = stack.enter_context(bed.server(folder / f"{kind}-without", None, "--no-commit"))
            for server in (durable, without):
                for name in ("alpha", "beta", "gamma"):
                    bed.join(server.url, name)
            for clients in CLIENTS:
                _row(table, kind, clients, script, durable.url, without.url)
    return [table]


def _row(table: Table, kind: str, clients: int, script: Path, durable: str, without: str) -> None:
    with_commit, without_commit = [], []
    for _ in range(SLICES):
        with_commit.append(_slice(durable, clients, script))
        without_commit.append(_slice(without, clients, script))
    rate = statistics.median(item[0] for item in with_commit)
    bound = statistics.median(item[0] for item in without_commit)
    p50 = statistics.median(item[1] for item in with_commit)
    p99 = statistics.median(item[2] for item in with_commit)
    table.add(kind, clients, float(rate), float(bound), f"{rate / bound:.0%}", f"{p50:.1f}", f"{p99:.1f}")
    sys.stderr.write(f"  {kind} {clients} clients: {rate:,.0f}/s of {bound:,.0f}/s\n")


def _slice(url: str, clients: int, script: Path) -> tuple[float, float, float]:
    """Requests per second, p50 and p99 in ms; any answer but 2xx is a failed measurement."""
    command = ["wrk", "-t1", f"-c{clients}", f"-d{SLICE_S}s", "--latency", "-s", str(script), f"{url}/v1/jobs"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in said, said
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert rate, said
    return float(rate[1]), _ms(said, "50%"), _ms(said, "99%")


def _ms(said: str, line: str) -> float:
    found = re.search(rf"\s{line}\s+([\d.]+)(us|ms|s)", said)
    assert found, said
    return float(found[1]) * {"us": 0.001, "ms": 1, "s": 1000}[found[2]]
