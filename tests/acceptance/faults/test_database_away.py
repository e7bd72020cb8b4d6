"""A database that is killed, that hangs, and that hangs while its server stops: nothing is lost, nothing killed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from switchyard import Client
from switchyard.errors import EXIT_OK, EXIT_UNAVAILABLE
from tests.acceptance.bed import Ledger, assert_each_ran_once, wait_all_final
from tests.acceptance.stage import SOON_S, graph
from tests.pace import slowness
from tests.processes import PATIENCE_S, until
from tests.programs import call, isolated_env, start_agent, start_server, yard
from tests.relay import relaying
from tests.services import Postgres

SILENT_S_MAX = 60.0  # about ten seconds on a quiet machine
OUTAGE_S = 10.0  # how long the database is away
# For a server whose database hangs: some five seconds on a quiet machine, a moment for accepted changes among them.
STOP_HUNG_S_MAX = 30.0


def test_a_database_that_goes_away_loses_nothing_and_kills_nothing(tmp_path: Path, own_postgres: Postgres) -> None:
    ledger = Ledger(tmp_path)
    database = own_postgres.create_database()
    with (
        start_server(tmp_path, database=database) as server,
        start_agent(tmp_path, server.url, "alpha", graph=graph(8)),
        Client(server.url, retry_s=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as aside,
    ):
        jobs = f"{server.url}/v1/jobs"

        def submit(then: str) -> str:
            return client.submit(ledger.command(then), env=ledger.env).id

        ids = [submit(f"sleep {seconds}") for seconds in (0, 4, OUTAGE_S + 3)]
        until(lambda: len(ledger.runs()) == 3, SOON_S, "all have begun")

        own_postgres.kill()
        away_until = time.monotonic() + OUTAGE_S
        late = aside.submit(submit, "true")
        refused = call("POST", jobs, {"spec": {"command": ["true"]}})
        assert (refused.status, refused.json["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert call("GET", jobs).status == 503
        assert yard("ls", env=isolated_env(tmp_path, url=server.url)).returncode == EXIT_UNAVAILABLE
        assert "port" not in refused.json["detail"], "where the database is, is for the operator's log"
        until(lambda: call("GET", f"{server.url}/readyz").status == 503, SOON_S, "a balancer is told")
        while time.monotonic() < away_until:  # the time away is the subject; the server must answer all along
            assert call("GET", f"{server.url}/healthz", timeout_s=10).status == 200
            assert not late.done()
            time.sleep(0.2)  # between two looks: the time away is the subject
        own_postgres.start()
        ids.append(late.result(PATIENCE_S))
        until(lambda: call("GET", f"{server.url}/readyz").status == 200, SOON_S, "it serves again")

        own_postgres.pause()
        hung = aside.submit(submit, "true")
        time.sleep(2)  # the hanging is the subject: most loops of the server meet it
        assert not hung.done()
        own_postgres.resume()
        ids.append(hung.result(PATIENCE_S))
        assert "Traceback" not in server.log

        own_postgres.pause()
        cut_off = aside.submit(submit, "true")
        time.sleep(0.3)  # until it waits for the database
        assert server.terminate(STOP_HUNG_S_MAX * slowness()) == EXIT_OK, "a hanging database keeps no server"
        own_postgres.resume()
        server.start().wait_ready()
        ids.append(cut_off.result(PATIENCE_S))
        assert_each_ran_once(ledger, wait_all_final(client, ids, PATIENCE_S))
        assert len(list(client.jobs())) == len(ids), "each accepted once, the refused ones not at all"


def test_silent_connections_to_the_database_are_replaced(tmp_path: Path, own_postgres: Postgres) -> None:
    """A firewall that forgot them: every byte is taken, none arrives, nothing is closed. New connections work."""
    database = own_postgres.create_database()
    ledger = Ledger(tmp_path)
    with (
        relaying(own_postgres.port) as relay,
        start_server(tmp_path, database=relay.url(database), name="one") as one,
        start_server(tmp_path, database=database, name="two") as two,
        start_agent(tmp_path, one.url, "alpha", graph=graph(8)),
        Client(one.url, retry_s=120) as client,
        Client(two.url) as other,
    ):
        ids = [client.submit(ledger.command(), env=ledger.env).id]
        for _ in range(2):
            relay.silence()
            began = time.monotonic()
            ids.append(client.submit(ledger.command(), env=ledger.env).id)
            list(client.jobs())
            assert time.monotonic() - began < SILENT_S_MAX * slowness()
            until(lambda: call("GET", f"{one.url}/readyz").status == 200, SILENT_S_MAX, "it serves again")
            # The listener is back, too: what the other server commits wakes the agent's poll here.
            ids.append(other.submit(ledger.command(), env=ledger.env).id)
            wait_all_final(client, ids, PATIENCE_S)
        assert_each_ran_once(ledger, wait_all_final(client, ids, PATIENCE_S))
        assert "Traceback" not in one.log
