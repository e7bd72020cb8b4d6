"""The PostgreSQL of the tests does what the tests rely on: faults are real, and nothing outlives it."""

from __future__ import annotations

import psycopg
import pytest

from tests.processes import PATIENCE_S, children_of, started_of, until
from tests.services import Postgres, missing, postgres_running


def write(url: str, text: str) -> None:
    with psycopg.connect(url, connect_timeout=5) as line:
        line.execute("CREATE TABLE IF NOT EXISTS note (text text)")
        line.execute("INSERT INTO note VALUES (%s)", (text,))


def read(url: str) -> list[str]:
    with psycopg.connect(url, connect_timeout=5) as line:
        return [row[0] for row in line.execute("SELECT text FROM note").fetchall()]


def test_everything_the_tests_need_is_installed() -> None:
    assert missing() == []


def test_each_database_is_empty_and_separate(postgres: Postgres) -> None:
    first, second = postgres.create_database(), postgres.create_database()
    write(first, "here")
    with pytest.raises(psycopg.errors.UndefinedTable):
        read(second)
    with psycopg.connect(second):  # somebody still connected does not keep a database
        postgres.drop_database(second)
        postgres.drop_database(first)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        read(first)


def test_committed_rows_survive_a_kill_and_a_restart(own_postgres: Postgres) -> None:
    url = own_postgres.create_database()
    write(url, "before the kill")
    backends = children_of(own_postgres.pid)
    own_postgres.kill()
    assert not [backend for backend in backends if backend.is_alive]
    with pytest.raises(psycopg.OperationalError):
        read(url)
    own_postgres.start()
    write(url, "after it")
    own_postgres.restart()
    assert read(url) == ["before the kill", "after it"]


def test_a_paused_server_hangs_and_a_resumed_one_answers(own_postgres: Postgres) -> None:
    url = own_postgres.create_database()
    write(url, "seen")
    own_postgres.pause()
    with pytest.raises(psycopg.OperationalError, match="timeout"):
        psycopg.connect(url, connect_timeout=2)
    own_postgres.resume()
    assert until(lambda: read(url), PATIENCE_S, "the resumed server answers") == ["seen"]


def test_nothing_is_left_of_a_server() -> None:
    with postgres_running() as server:
        pid, folder = server.pid, server.folder
        server.pause()  # not even then
    assert started_of(pid) is None
    assert not folder.exists()
