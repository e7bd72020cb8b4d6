"""A server waits at its start for a PostgreSQL that is not up yet, and not for one that refuses it."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from switchyard.errors import Unavailable
from switchyard.server.commands.database_wait import wait_for_database, while_database_restarts
from switchyard.store.engine.database import Database
from switchyard.store.jobs.failures import ConnectionLost
from tests.services import Postgres


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_waits_while_nobody_answers_and_gives_up_in_time() -> None:
    waited: list[float] = []
    with (
        closing(Database(f"postgresql://nobody@127.0.0.1:{free_port()}/yard")) as database,
        capture_logs() as logs,
        pytest.raises(Unavailable),
    ):
        wait_for_database(database, wait_s=3, now=lambda: sum(waited), pause=waited.append)
    assert sum(waited) == 3
    assert [entry["event"] for entry in logs] == ["waiting for the database"]


def test_it_goes_on_once_the_database_answers(monkeypatch: pytest.MonkeyPatch, postgres: Postgres) -> None:
    with closing(Database(postgres.create_database())) as database:
        right, database.reader = database.reader, Database(f"postgresql://nobody@127.0.0.1:{free_port()}/y").reader

        def start(_: float) -> None:
            database.reader = right

        wait_for_database(database, pause=start)
        assert database.reader is right


def test_a_refusal_fails_at_once(postgres: Postgres) -> None:
    known, _, _ = postgres.create_database().rpartition("/")
    with closing(Database(f"{known}/there_is_none")) as database, pytest.raises(Unavailable) as failure:
        wait_for_database(database, pause=lambda _: pytest.fail("it waited"))
    assert "there_is_none" in "".join(failure.value.__notes__)


def test_sqlite_is_there() -> None:
    wait_for_database(Database("sqlite:////nowhere/yard.db"))


def test_a_step_of_the_start_is_repeated_after_the_database_went_away(postgres: Postgres) -> None:
    tries: list[int] = []
    with closing(Database(postgres.create_database())) as database, capture_logs() as logs:

        def step() -> int:
            tries.append(len(tries))
            with database.read() as tx:
                if len(tries) == 1:
                    tx.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
                return int(tx.execute(sa.text("SELECT 42")).scalar_one())

        assert while_database_restarts(database, step, pause=lambda _: None) == 42
    assert tries == [0, 1]
    assert [entry["event"] for entry in logs] == ["the database went away during the start"]


def test_a_database_that_does_not_come_back_ends_the_start() -> None:
    waited: list[float] = []

    def step() -> None:
        raise ConnectionLost

    with (
        closing(Database(f"postgresql://nobody@127.0.0.1:{free_port()}/yard")) as database,
        pytest.raises(Unavailable),
    ):
        while_database_restarts(database, step, wait_s=3, now=lambda: sum(waited), pause=waited.append)
    assert sum(waited) <= 4
