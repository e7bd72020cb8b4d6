"""How lists and leases hold up: the same questions at a thousand and at a million jobs in the database."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import sqlalchemy as sa
from tests.programs import call

from bench import bed
from bench.table import Table

SIZES = (1_000, 1_000_000)
ROUND = 5_000
LOOKS = 30


def measure(folder: Path) -> list[Table]:
    table = Table(
        "Latency by the number of jobs",
        f"Median of {LOOKS}, over HTTP, in ms. Half of the jobs wait at one cluster, in ten lanes, half are pending "
        "for one that is cordoned. *Rare label*: one page of at most 5,000 rows looked at. *Submit* and *lease* of 10: "
        "with the commit. PostgreSQL has written its checkpoint and counted its rows before, as it does by itself "
        "within minutes.",
        ["database", "jobs", "first page", "pending page", "rare label", "one job", "submit", "lease of 10"],
    )
    for kind in bed.DATABASES:
        with bed.database(kind) as url, bed.server(folder / kind, url) as server:
            credential = bed.join(server.url, "alpha")
            bed.join(server.url, "beta")
            call("POST", f"{server.url}/v1/clusters/beta/cordon", {"reason": "bench"})
            for number in range(10):
                call("POST", f"{server.url}/v1/projects", {"name": f"p{number}"})
            made, last = 0, ""
            for size in SIZES:
                while made < size:
                    count = min(ROUND, size - made)
                    last = fill(server.url, count, made)
                    made += count
                    if made % 100_000 == 0:
                        sys.stderr.write(f"  {kind}: {made:,} jobs\n")
                if url is not None:
                    _settle(url)
                table.add(kind, f"{size:,}", *_look(server.url, credential, last))
    return [table]


def _settle(url: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))
        connection.execute(sa.text("CHECKPOINT"))
    engine.dispose()


def fill(url: str, count: int, start: int) -> str:
    """Submit jobs for the clusters alpha and beta, in the projects p0 to p9. Returns the id of one."""
    jobs = [
        {
            "spec": {"command": ["true"]},
            "project": f"p{(start + number) % 10}",
            "labels": {"n": str(number % 100)},
            "cluster": "beta" if number % 2 else "alpha",
        }
        for number in range(count)
    ]
    answer = call("POST", f"{url}/v1/jobs/bulk", json.dumps({"jobs": jobs}).encode(), timeout_s=120)
    assert answer.status == 201, answer.body[:300]
    return str(answer.json["items"][0]["job"]["id"])


def _look(url: str, credential: str, job: str) -> list[str]:
    return [
        _median(lambda: call("GET", f"{url}/v1/jobs?limit=50")),
        _median(lambda: call("GET", f"{url}/v1/jobs?limit=50&state=PENDING")),
        _median(lambda: call("GET", f"{url}/v1/jobs?limit=50&label=n=nobody")),
        _median(lambda: call("GET", f"{url}/v1/jobs/{job}")),
        _median(lambda: _submit(url)),
        _median(lambda: _lease(url, credential)),
    ]


def _submit(url: str) -> None:
    answer = call("POST", f"{url}/v1/jobs", {"spec": {"command": ["true"]}, "cluster": "alpha"})
    assert answer.status == 201, answer.body[:300]


def _lease(url: str, credential: str) -> None:
    ask = {"incarnation": "b", "session": 1, "want": 10}
    answer = call("POST", f"{url}/v1/agents/poll", ask, token=credential)
    assert len(answer.json["leases"]) == 10, answer.body[:300]


def _median(look: object) -> str:
    times = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        look()  # type: ignore[operator]
        times.append(time.perf_counter() - began)
    return f"{statistics.median(times) * 1000:.1f}"
