"""Databases with the schema in place and no rows, made once and emptied again: a test has its own in milliseconds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg
import pytest

from switchyard.store.engine.database import Database, create_schema
from switchyard.store.engine.metadata import metadata
from tests.services import Postgres

ENGINES = ("sqlite", "postgresql")
# By the port of the PostgreSQL, which is this test run's own: the database that tests empty, the one that they copy.
_schemas: dict[int, str] = {}
_templates: dict[int, str] = {}
_emptiers: dict[int, psycopg.Connection] = {}


@cache
def migrated_file() -> bytes:
    """An SQLite file with the schema and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-schema-"))
    try:
        with closing(Database(f"sqlite:///{folder / 'yard.db'}")) as database:
            create_schema(database)
        return (folder / "yard.db").read_bytes()
    finally:
        shutil.rmtree(folder)


def emptied(server: Postgres) -> str:
    """The URL of this worker's database, with the schema and no rows. Nobody who still holds a lock there lives on."""
    if server.port not in _schemas:
        _schemas[server.port] = migrated(server)
    url = _schemas[server.port]
    line = _emptiers.get(server.port)
    if line is None or line.closed:
        line = _emptiers[server.port] = _emptier(url)
    line.execute("SELECT pg_temp.empty_all()")
    return url


def _emptier(url: str) -> psycopg.Connection:
    """A session that stays: to read the catalog for all tables takes a new one longer than to empty them."""
    line = psycopg.connect(url, connect_timeout=10, autocommit=True)
    deletes = "".join(f'DELETE FROM "{table.name}"; ' for table in reversed(metadata.sorted_tables))
    line.execute(
        f"""CREATE FUNCTION pg_temp.empty_all() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid();
        {deletes}
        ALTER SEQUENCE handovers_number_seq RESTART; END $$""".encode()
    )
    return line


def migrated(server: Postgres) -> str:
    """The URL of a database of one's own, with the schema: a copy of one that is migrated once per PostgreSQL."""
    if server.port not in _templates:
        url = server.create_database()
        with closing(Database(url)) as database:
            create_schema(database)
        _templates[server.port] = url.rsplit("/", 1)[1]
    return server.create_database(copy_of=_templates[server.port])


def a_url(engine: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if engine == "sqlite":
        (folder / "yard.db").write_bytes(migrated_file())
        return f"sqlite:///{folder / 'yard.db'}"
    return emptied(request.getfixturevalue("postgres"))


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the schema and no rows: the test runs once for each engine."""
    return a_url(request.param, request, tmp_path)


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return a_url("sqlite", request, tmp_path)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return a_url("postgresql", request, tmp_path)


@pytest.fixture
def store(store_url: str) -> Iterator[Database]:
    """The same, opened."""
    with closing(Database(store_url)) as database:
        yield database
