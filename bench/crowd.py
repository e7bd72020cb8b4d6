"""While others do a lot: how long a submit waits during 100,000 cancels at once, and during heavy output of jobs."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.programs import call, start_agent

from bench import bed
from bench.table import Table

CANCELS = 100_000
CALM_S = 30.0  # as long as the cancels take: a rare pause of the disk shows in both
LOUD = 4  # jobs that write as fast as they can
LOUD_S = 10.0
SPEC = {"command": ["true"]}


def measure(folder: Path) -> list[Table]:
    table = Table(
        "A submit among the noise",
        f"One client submits one job after the other: alone, while {CANCELS:,} waiting jobs are cancelled by label in "
        f"one sweep, and while {LOUD} jobs write as fast as they can (each bounded by the log limit). In ms: the "
        "median, the 99th percentile, the longest.",
        ["database", f"alone, {CALM_S:.0f} s", "cancels took s", "during them", "output MB/s", "during that"],
    )
    for kind in bed.DATABASES:
        with bed.database(kind) as url, bed.server(folder / kind, url) as server:
            table.add(kind, *_cells(folder / kind, server.url))
    return [table]


def _cells(folder: Path, url: str) -> list[str]:
    bed.join(url, "idle")
    for _ in range(CANCELS // 5_000):
        jobs = [{"spec": SPEC, "cluster": "idle", "labels": {"run": "7"}}] * 5_000
        answer = call("POST", f"{url}/v1/jobs/bulk", json.dumps({"jobs": jobs}).encode(), timeout_s=120)
        assert answer.status == 201, answer.body[:300]
    calm = _beside(url, lambda: time.sleep(CALM_S))
    began = time.monotonic()
    crowded = _beside(url, lambda: _cancel_all(url))
    took = time.monotonic() - began
    kept, loud = _among_output(folder, url)
    return [_ms(calm), f"{took:.0f}", _ms(crowded), f"{kept:.1f}", _ms(loud)]


def _ms(times: list[float]) -> str:
    centiles = statistics.quantiles(times, n=100)
    return f"{centiles[49] * 1000:.1f} / {centiles[98] * 1000:.0f} / {max(times) * 1000:.0f}"


def _beside(url: str, work: Callable[[], None]) -> list[float]:
    """The times of submits while `work` goes on."""
    times: list[float] = []
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive() or not times:
        began = time.perf_counter()
        answer = call("POST", f"{url}/v1/jobs", {"spec": SPEC, "cluster": "idle"})
        assert answer.status == 201, answer.body
        times.append(time.perf_counter() - began)
    thread.join()
    return times


def _cancel_all(url: str) -> None:
    cursor = None
    while True:
        asked = {"selector": {"labels": {"run": "7"}}, **({"cursor": cursor} if cursor else {})}
        answer = call("POST", f"{url}/v1/jobs/cancel", asked, timeout_s=120)
        assert answer.status == 200, answer.body[:300]
        cursor = answer.json.get("next")
        if not cursor:
            return


def _among_output(folder: Path, url: str) -> tuple[float, list[float]]:
    graph = {"nodes": 1, "each": {"core": 64, "memory": "64GiB"}}
    loud = {"command": ["/bin/sh", "-c", f"timeout {LOUD_S:.0f} yes 'a line of output that is neither short nor long'"]}
    with start_agent(folder, url, "loud", graph=graph):
        ids = [call("POST", f"{url}/v1/jobs", {"spec": loud, "cluster": "loud"}).json["id"] for _ in range(LOUD)]
        times = _beside(url, lambda: time.sleep(LOUD_S))
        kept = 0
        for job in ids:
            call("GET", f"{url}/v1/jobs/{job}/wait?timeout_s=30", timeout_s=60)
            kept += int(call("GET", f"{url}/v1/jobs/{job}/output?stream=stdout").json["size"])
    return kept / LOUD_S / 1e6, times
