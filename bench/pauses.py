"""How long the event loop lets others wait, under each request that is meant to hold it up."""

from __future__ import annotations

from pathlib import Path

from tests import hostile

from bench.bed import join, server
from bench.table import Table

BELOW_S = 0.05
BEFORE_COMMIT = "33ec605"
# Milliseconds of CPU on that commit, with only the meter added to it.
BEFORE: dict[str, int] = {
    "job: 2,700,000 empty words": 1353,
    "job: 500,000 variables": 770,
    "job: 1,000,000 objects": 1516,
    "job: text with escapes": 388,
    "job: nested 4,000,000 deep": 7,
    "job: large by right": 39,
    "job: large by right, 4 at once": 44,
    "answer: jobs with large specs": 60,
    "answer: the API's description": 0,
    "job: 1,000,000 objects, 4 at once": 1452,
    "job: array 0-1999998:2": 1665,
    "job: 16 KiB of objects": 5,
    "job: 16 KiB of resources": 20,
    "job: 16 KiB of variables, 32 at once": 16,
    "plan: 1,000,000 objects": 1080,
    "quotes: 500,000 variables": 677,
    "fit: 1,000,000 objects": 1169,
    "bulk: 60 MiB of numbers": 3085,
    "bulk: one job of 60 MiB": 10707,
    "bulk: 20,000 jobs": 77,
    "bulk: 100,000 jobs, none good": 232,
    "poll: 10,000,000 numbers": 15,
    "poll: 100,000 in the inventory": 664,
    "poll: 16 MiB of output": 117,
    "user: 1 MiB of fields": 3,
    "pool: 1 MiB of members": 15,
    "graph: 1 MiB of shapes": 941,
    "http: 200,000 headers": 90,
    "http: an address of 8 MiB": 42,
    "http: 5,000 parameters": 6,
    "http: chunks of one byte": 40,
    "http: 5,000 requests in a row": 26,
    "http: 4 times 5,000 requests in a row": 82,
    "answer: all events": 0,
}


def measure(folder: Path) -> list[Table]:
    table = Table(
        "The longest pause of the event loop",
        "One server on SQLite; each request is sent by one caller while another asks for something cheap. *CPU*: the "
        "longest pause less the time for which the machine gave the server no core, the best of 3 where the first was "
        f"over 50 ms. *before*: the same on commit {BEFORE_COMMIT}. *cheap answer*: the slowest beside it.",
        ["request", "answer", "before, ms of CPU", "pause, ms of CPU", "pause, ms", "cheap answer, ms"],
    )
    with server(folder, None) as running:
        target = hostile.Target(running.url, join(running.url, "bench"))
        for each in hostile.HOSTILE:
            seen = hostile.measure(target, each, below_s=BELOW_S)
            answers = ", ".join(str(status) for status in sorted(set(seen.statuses)))
            table.add(
                each.name,
                answers,
                f"{BEFORE[each.name]:,}" if each.name in BEFORE else "",
                *(f"{took_s * 1000:,.0f}" for took_s in (seen.pause.cpu_s, seen.pause.wall_s, seen.cheap_s)),
            )
    return [table]
