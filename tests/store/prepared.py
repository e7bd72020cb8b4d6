"""Databases with the schema in place, copied from one that was migrated once: a test has its own in milliseconds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg
import pytest

from switchyard.store.database import Database, upgrade
from tests.services import Postgres

ENGINES = ("sqlite", "postgresql")
_templates: dict[int, str] = {}  # by the port of the server, which is this test run's own
_made = 0


@cache
def migrated_file() -> bytes:
    """An SQLite file with the schema and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-schema-"))
    try:
        with closing(Database(f"sqlite:///{folder / 'yard.db'}")) as database:
            upgrade(database)
        return (folder / "yard.db").read_bytes()
    finally:
        shutil.rmtree(folder)


def migrated_copy(server: Postgres) -> str:
    """The URL of a new database with the schema on this PostgreSQL."""
    global _made
    if server.port not in _templates:
        url = server.create_database()
        with closing(Database(url)) as database:
            upgrade(database)
        _templates[server.port] = url.rsplit("/", 1)[1]
    _made += 1
    name = f"copy_{_made}"
    with psycopg.connect(server.url(), autocommit=True, connect_timeout=10) as line:
        line.execute(f'CREATE DATABASE "{name}" TEMPLATE "{_templates[server.port]}"'.encode())
    return server.url(name)


def a_url(engine: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if engine == "sqlite":
        (folder / "yard.db").write_bytes(migrated_file())
        yield f"sqlite:///{folder / 'yard.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = migrated_copy(server)
    yield url
    server.drop_database(url)


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the schema and no rows: the test runs once for each engine."""
    yield from a_url(request.param, request, tmp_path)


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield from a_url("sqlite", request, tmp_path)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield from a_url("postgresql", request, tmp_path)


@pytest.fixture
def store(store_url: str) -> Iterator[Database]:
    """The same, opened."""
    with closing(Database(store_url)) as database:
        yield database
