"""How soon an old server answers 503 once its database has the revision of a newer version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.acceptance.operation.test_rolling_upgrade import make_next_version
from tests.acceptance.operation.test_schema import change
from tests.programs import call, yard
from tests.services import postgres_running

from bench import bed
from bench.table import Table
from switchyard.store.engine.database import HEAD_REVISION

ROUNDS = 3
PAUSE_S = 0.01  # between two requests
REVISION = "UPDATE alembic_version SET version_num = '{}'"


def measure(folder: Path) -> list[Table]:
    table = Table(
        "The first 503 of an upgrade",
        f"A client lists jobs again and again. From the moment at which the database has another revision, {ROUNDS} "
        "times each. *By hand*: one UPDATE of the revision, while nobody writes. *yard db upgrade*: of a copy of this "
        "version with one more migration; it tells servers to stop before it migrates, so a negative time is before "
        "its end. On SQLite it refuses while a server runs.",
        ["database", "changed", "first 503 after, s"],
    )
    for kind in bed.DATABASES:
        table.add(kind, "by hand", _shown(_by_hand(folder / kind, kind)))
    table.add("postgresql", "`yard db upgrade`", _shown(_by_upgrade(folder)))
    return [table]


def _shown(times: Iterator[float]) -> str:
    return ", ".join(f"{took:.2f}" for took in times)


def _by_hand(folder: Path, kind: str) -> Iterator[float]:
    with bed.database(kind) as url, bed.server(folder, url) as server:
        database = url or f"sqlite:///{folder}/server-data/switchyard.db"
        for _ in range(ROUNDS):
            change(database, REVISION.format("9999"))
            changed = time.monotonic()
            yield _first_at(server.url, 503) - changed
            change(database, REVISION.format(HEAD_REVISION))
            _first_at(server.url, 200)


def _by_upgrade(folder: Path) -> Iterator[float]:
    env = make_next_version(folder)
    with postgres_running(durable=True) as postgres:
        for number in range(ROUNDS):
            url = postgres.create_database()
            with bed.server(folder / f"upgrade-{number}", url) as server, ThreadPoolExecutor(1) as pool:
                refused = pool.submit(_first_at, server.url, 503)
                yard("db", "upgrade", "--database", url, env=env, check=True)
                ended = time.monotonic()
                yield refused.result() - ended


def _first_at(url: str, status: int) -> float:
    """Return when the server first answers with this status."""
    while call("GET", f"{url}/v1/jobs?limit=1").status != status:
        time.sleep(PAUSE_S)
    return time.monotonic()
