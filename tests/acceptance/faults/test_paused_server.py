"""A server that is stopped at any line (SIGSTOP, a machine that hangs): the other goes on, and later it does, too."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from switchyard import Client, State
from switchyard.errors import YardError
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.processes import PATIENCE_S, until
from tests.programs import Server, call, start_agent, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

NODES = {"nodes": 1, "each": {"core": 8, "memory": "8GiB"}}
ROUNDS_MAX = 200  # until a pause falls between two statements of a transaction
LOCKS_S = 5  # how long PostgreSQL lets a stopped server keep its locks
TERM_S = 15  # a leader that says nothing for so long is replaced
SLOW = 6  # a busy machine
HELD = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' "
    "AND backend_xid IS NOT NULL AND state_change < clock_timestamp() - interval '300 ms'"
)


def test_a_paused_server_does_not_hold_up_the_other(tmp_path: Path, postgres: Postgres) -> None:
    database = migrated(postgres)
    ledger = Ledger(tmp_path)
    with (
        start_server(tmp_path, database=database, name="one") as one,
        start_server(tmp_path, database=database, name="two") as two,
        start_agent(tmp_path, two.url, "alpha", graph=NODES),
        Client(two.url, retry_s=PATIENCE_S) as client,
    ):
        with Busy(one):
            _pause_with_locks(one, database)
        began = time.monotonic()
        first = client.submit(ledger.command(), env=ledger.env).id
        assert time.monotonic() - began < LOCKS_S * SLOW, "the locks of a stopped server end"
        # One that waits for another is released by whoever leads.
        second = client.submit(ledger.command(), env=ledger.env, after=[first]).id
        jobs = wait_all_final(client, [first, second], (TERM_S + LOCKS_S) * SLOW)
        assert_each_ran_once(ledger, jobs)

        one.resume()
        until(
            lambda: call("GET", f"{one.url}/readyz", timeout_s=10).status == 200,
            PATIENCE_S,
            "the paused server goes on",
        )
        with Client(one.url, retry_s=PATIENCE_S) as paused:
            third = paused.submit(ledger.command(), env=ledger.env)
            assert third.wait(timeout_s=PATIENCE_S).state is State.SUCCEEDED
        assert "Traceback" not in one.log + two.log


class Busy:
    """Submits at a server all the while, of jobs that no cluster takes."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(4)

    def __enter__(self) -> None:
        for _ in range(4):
            self._threads.submit(self._submit)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._threads.shutdown(wait=False)

    def _submit(self) -> None:
        jobs = {"jobs": [{"spec": {"command": ["true"]}, "hold": True}] * 50}
        while not self._stop.is_set():
            try:
                call("POST", f"{self._url}/v1/jobs/bulk", jobs, timeout_s=5)
            except (OSError, YardError):
                continue  # it is paused


def _pause_with_locks(server: Server, database: str) -> None:
    """Pause a server inside a transaction that has written something."""
    with psycopg.connect(database, autocommit=True) as line:
        for _ in range(ROUNDS_MAX):
            time.sleep(0.02)  # where it stops is left to chance
            server.pause()
            time.sleep(0.4)  # until PostgreSQL has done what it was asked before
            row = line.execute(HELD).fetchone()
            if row and row[0]:
                return
            server.resume()
    raise AssertionError(f"in {ROUNDS_MAX} rounds no pause fell into a transaction")
