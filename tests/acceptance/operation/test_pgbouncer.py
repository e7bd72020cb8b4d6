"""Two servers behind PgBouncer in transaction mode: no session is theirs, and all goes on as without."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from switchyard import Client
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.pgbouncer_service import PgBouncer
from tests.processes import PATIENCE_S
from tests.programs import isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.store.prepared import migrated

NODES = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}}
BUSY_S = 4.0  # the fault, statements prepared by one client that another met, showed within a second
AT_ONCE = 4


def test_jobs_through_a_pooler_run_once_and_nothing_fails(
    tmp_path: Path, postgres: Postgres, pgbouncer: PgBouncer
) -> None:
    database = pgbouncer.url(migrated(postgres))
    ledger = Ledger(tmp_path)
    with (
        start_server(tmp_path, database=database, name="one") as one,
        start_server(tmp_path, database=database, name="two") as two,
        start_agent(tmp_path, one.url, "alpha", graph=NODES),
        start_agent(tmp_path, two.url, "beta", graph=NODES),
        Client(one.url) as here,
        Client(two.url) as there,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        ids = [client.submit(ledger.command(), env=ledger.env).id for client in (here, there)]
        until_s = time.monotonic() + BUSY_S

        def submit(number: int) -> list[str]:
            client = (here, there)[number % 2]
            accepted = []
            while time.monotonic() < until_s:
                accepted.append(client.submit(ledger.command(), env=ledger.env).id)
                list(client.jobs())
                time.sleep(0.2)  # more would only wait for the agents
            return accepted

        ids += [each for found in threads.map(submit, range(AT_ONCE)) for each in found]
        assert_each_ran_once(ledger, wait_all_final(there, ids, 120))
        # A wait at one server for a job of the other: the look once a second takes the place of LISTEN.
        job = here.submit(["true"])
        assert there.handle(job.id).wait(timeout_s=PATIENCE_S).id == job.id
        assert "listen=HOST:PORT" in one.log, "the operator is told"
        assert "Traceback" not in one.log + two.log
        assert "prepared statement" not in one.log + two.log
    done = yard("db", "status", "--database", database, env=isolated_env(tmp_path), check=True)
    assert "up to date" in done.stdout
