"""How lists, leases, counts and explanations hold up: the same questions at a thousand and at many more jobs."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa
from tests.builders import a_request
from tests.programs import call
from tests.service.rig import ADMIN, Rig

from bench import bed
from bench.table import Table
from switchyard.model.wire.ids import make_id
from switchyard.service.job.explanation import job_explain
from switchyard.service.job.stats import route_stats
from switchyard.store.tables.schema import jobs as job_table

SIZES = (1_000, 1_000_000)
ROUND = 5_000
LOOKS = 30
CPU_SIZES = (1_000, 50_000, 200_000)
HOUR_S = 3600


def measure(folder: Path) -> list[Table]:
    return [_latency(folder), cpu_by_size(folder / "cpu")]


def cpu_by_size(folder: Path) -> Table:
    """As a function of its own: `python -c "from bench.scale import *; print(cpu_by_size(Path('x')).markdown())"`."""
    table = Table(
        "CPU of counts and explanations by the number of jobs",
        f"Median CPU ms of {LOOKS} calls of the use case, in process, SQLite. All jobs wait at one cluster, in 20 "
        "lanes. *Explain*: of the newest job.",
        ["jobs", "route stats", "explain"],
    )
    folder.mkdir(parents=True)
    with closing(Rig(f"sqlite:///{folder / 'yard.db'}", folder)) as rig:
        rig.cluster("alpha")
        rows = [_first_row(rig, f"p{number}") for number in range(20)]
        made = len(rows)
        for size in CPU_SIZES:
            last = _copy(rig, rows, begin=made, end=size)
            made = size
            stats = _cpu_median(lambda: route_stats(rig.context, ADMIN, HOUR_S))
            explain = _cpu_median(lambda last=last: job_explain(rig.context, ADMIN, last))  # type: ignore[misc]
            table.add(f"{size:,}", stats, explain)
    return table


def _first_row(rig: Rig, project: str) -> dict[str, object]:
    rig.project(project)
    job = rig.submit(a_request(project=project, cluster="alpha")).id
    with rig.context.database.read() as tx:
        return dict(tx.execute(sa.select(job_table).where(job_table.c.id == job)).mappings().one())


def _copy(rig: Rig, rows: list[dict[str, object]], *, begin: int, end: int) -> str:
    """Store further jobs that differ from these rows in their ids alone. Returns the last id."""
    now_us = rig.clock()
    copies = [
        {**rows[number % len(rows)], "id": make_id(now_us, number), "seq": 1_000_000 + number, "created_us": now_us}
        for number in range(begin, end)
    ]
    with rig.context.database.write() as tx:
        tx.execute(sa.insert(job_table), copies)
    return str(copies[-1]["id"])


def _cpu_median(work: Callable[[], object]) -> str:
    times = []
    for _ in range(LOOKS):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return f"{statistics.median(times) * 1000:.1f}"


def _latency(folder: Path) -> Table:
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
    return table


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
