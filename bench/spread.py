"""One array on three clusters of 2, 4 and 8 cores: how long it takes, against the ideal and against one cluster."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from tests.programs import start_agent

from bench import bed
from bench.table import Table
from switchyard import Client

SIZES = {"small": 2, "middle": 4, "large": 8}
TASKS = int(os.environ.get("BENCH_SPREAD_TASKS", "1000"))
TASK_S = float(os.environ.get("BENCH_SPREAD_TASK_S", "2"))
ENDS_S = 3600.0
ABOUT = (
    f"An array of {TASKS:,} tasks that sleep {TASK_S:g} s on three clusters of 2, 4 and 8 cores (local backend, one "
    "machine). From the submit to the end of the array. *Ideal*: all 14 cores busy to the end, and nothing else. "
    "*Together*: the same array with `--together`, all on the cluster that was drawn."
)


def measure(folder: Path) -> list[Table]:
    columns = ["database", "how", "s", "ideal s", "times the ideal", "tasks by cluster"]
    table = Table("An array on three clusters", ABOUT, columns)
    ideal_s = -(-TASKS // sum(SIZES.values())) * TASK_S
    for kind in bed.DATABASES:
        with ExitStack() as stack:
            url = stack.enter_context(bed.database(kind))
            server = stack.enter_context(bed.server(folder / kind, url))
            for name, cores in SIZES.items():
                graph = {"nodes": 1, "each": {"core": cores, "memory": "64GiB"}}
                stack.enter_context(start_agent(folder / kind, server.url, name, graph=graph))
            client = stack.enter_context(Client(server.url))
            for how, together in (("spread", False), ("together", True)):
                took_s, counts = _run(client, together=together)
                shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
                table.add(kind, how, f"{took_s:.1f}", f"{ideal_s:.1f}", f"{took_s / ideal_s:.2f}", shown)
    return [table]


def _run(client: Client, *, together: bool) -> tuple[float, dict[str, int]]:
    began = time.monotonic()
    job = client.submit(["sleep", f"{TASK_S:g}"], array=f"0-{TASKS - 1}", together=together)
    ended = job.wait(timeout_s=ENDS_S)
    took_s = time.monotonic() - began
    assert ended.state.value == "SUCCEEDED", ended
    return took_s, client.job(job.id).tasks_by_cluster
