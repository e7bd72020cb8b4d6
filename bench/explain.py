"""Explain one job over 100 clusters that all differ: with every verdict, what would let it run, its rules and history.

In process the CPU time of the use case alone; over HTTP the time on the wall that a caller sees.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.builders import a_graph, a_group, a_request
from tests.programs import call
from tests.service.rig import ADMIN, Rig

from bench import bed
from bench.table import Table
from switchyard.model.graph import Graph
from switchyard.service.job.explanation import job_explain

CLUSTERS = 100
ASKED = 200
JOBS: dict[str, dict[str, Any]] = {
    "one that goes somewhere": {"cores": 2},
    "rejected: too many GPUs": {"cores": 2, "gpus": 9},
    "rejected: packs badly": {"tasks": 100_000, "cores": 3, "memory": "37GiB"},
}


def measure(folder: Path) -> list[Table]:
    table = Table(
        "Explain of one job",
        f"{CLUSTERS} clusters of {CLUSTERS} kinds, SQLite. *CPU*: the use case in process; *wall*: a GET over HTTP.",
        ["job", "hints", "CPU ms p50", "CPU ms p99", "wall ms p50", "wall ms p99"],
    )
    inside = _inside(folder / "inside")
    outside = _outside(folder / "outside")
    for name in JOBS:
        hints, cpu = inside[name]
        cuts = [*_cuts(cpu), *_cuts(outside[name])]
        table.add(name, hints, *(f"{cut:.1f}" for cut in cuts))
    return [table]


def _inside(folder: Path) -> dict[str, tuple[int, list[float]]]:
    folder.mkdir()
    found: dict[str, tuple[int, list[float]]] = {}
    with closing(Rig(f"sqlite:///{folder / 'yard.db'}", folder)) as rig:
        for number in range(CLUSTERS):
            rig.cluster(f"c{number:03}", graph=_graph(number))
        for name, needs in JOBS.items():
            job = rig.submit(a_request(**needs)).id
            hints = len(job_explain(rig.context, ADMIN, job).hints)
            found[name] = hints, _times(lambda job=job: job_explain(rig.context, ADMIN, job), time.thread_time)
    return found


def _outside(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with bed.server(folder, None) as server:
        for number in range(CLUSTERS):
            bed.join(server.url, f"c{number:03}", graph=_graph(number))
        for name, needs in JOBS.items():
            made = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"], "resources": needs}}).json["id"]
            found[name] = _times(
                lambda made=made: call("GET", f"{server.url}/v1/jobs/{made}/explain"), time.perf_counter
            )
    return found


def _graph(number: int) -> Graph:
    return a_graph(
        a_group(1 + number % 13, cores=4 + number, gpus=number % 5, memory_gib=16 + number),
        a_group(1 + number % 7, cores=8 + number, memory_gib=64 + number),
    )


def _times(work: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    found = []
    for _ in range(ASKED):
        began = clock()
        work()
        found.append((clock() - began) * 1000)
    return found


def _cuts(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[98]
