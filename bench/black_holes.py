"""An array on three clusters of which one lacks the program: tasks lost and time, with probation and without it."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.programs import start_agent, start_server

from bench.table import Table
from switchyard import Client, State

CLUSTERS = {"north": True, "south": True, "hole": False}  # whether the program is there
CORES = 4
TASKS = int(os.environ.get("BENCH_BLACK_HOLES_TASKS", "1000"))
TASK_S = float(os.environ.get("BENCH_BLACK_HOLES_TASK_S", "1"))
ENDS_S = 3600.0
ABOUT = (
    f"An array of {TASKS:,} tasks that sleep {TASK_S:g} s on three clusters of {CORES} cores (local backend, one "
    "machine, SQLite). On one of them the program is missing, so each task fails there at once. *Before*: "
    "`probation: {enabled: false}`. *All well*: the program is on all three. Ideal for all tasks: "
    f"{TASKS * TASK_S / (2 * CORES):.0f} s on two clusters, {TASKS * TASK_S / (3 * CORES):.0f} s on three."
)


def measure(folder: Path) -> list[Table]:
    table = Table("Black holes", ABOUT, ["how", "lost", "of all", "s", "s for 1,000 good tasks", "tasks by cluster"])
    for how, config, is_mended in (
        ("before", "probation: {enabled: false}\n", False),
        ("after", "", False),
        ("all well, before", "probation: {enabled: false}\n", True),
        ("all well, after", "", True),
    ):
        lost, took_s, counts = _run(folder / how.replace(" ", "-").replace(",", ""), config, is_mended=is_mended)
        shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        per_good = took_s * 1000 / max(1, TASKS - lost)
        table.add(how, str(lost), f"{lost / TASKS:.1%}", f"{took_s:.1f}", f"{per_good:.0f}", shown)
    return [table]


def _run(folder: Path, config: str, *, is_mended: bool) -> tuple[int, float, Counter[str]]:
    folder.mkdir(parents=True)
    (folder / "yard.yaml").write_text(config or "{}\n")
    with ExitStack() as stack:
        server = stack.enter_context(start_server(folder, extra=["--config", str(folder / "yard.yaml")]))
        for name, has_program in CLUSTERS.items():
            programs = folder / f"{name}-bin"
            programs.mkdir()
            if has_program or is_mended:
                (programs / "simulate").write_text(f"#!/bin/sh\nexec sleep {TASK_S:g}\n")
                (programs / "simulate").chmod(0o755)
            graph = {"nodes": 1, "each": {"core": CORES, "memory": "64GiB"}}
            env = {"PATH": f"{programs}:{os.environ['PATH']}"}
            stack.enter_context(start_agent(folder, server.url, name, graph=graph, env=env))
        client = stack.enter_context(Client(server.url))
        began = time.monotonic()
        job = client.submit(["simulate"], array=f"0-{TASKS - 1}")
        job.wait(timeout_s=ENDS_S)
        took_s = time.monotonic() - began
        tasks = list(client.tasks(job.id))
        lost = sum(task.state is State.FAILED for task in tasks)
        return lost, took_s, Counter(task.cluster or "" for task in tasks)
