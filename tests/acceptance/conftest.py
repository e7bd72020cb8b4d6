"""What most acceptance tests stand on: one server per file, and the SDK's client for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from switchyard import Client
from tests.acceptance.stage import Stage, staged
from tests.services import Postgres
from tests.store.prepared import ENGINES, migrated, migrated_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server without authentication, shared by the tests of one file."""
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(params=ENGINES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the schema and no rows, for whole servers: the test runs once for each engine."""
    if request.param == "sqlite":
        file = tmp_path / "yard.db"
        file.write_bytes(migrated_file())
        yield f"sqlite:///{file}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = migrated(server)
    yield url
    server.drop_database(url)


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with Client(stage.url, stage.token) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium that the tests of one file share. Each takes a `Visitor` of its own.

    Playwright runs an event loop in this thread until it ends, and other files need the thread without one.
    """
    from tests.browser import browser_running

    with browser_running() as running:
        yield running
