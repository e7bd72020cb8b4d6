"""One real server for all tests of a module, with people in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.programs import start_server
from tests.server.town import Town, settle


@pytest.fixture(scope="module")
def town_on(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Town]]:
    """Starts a server with people in it on an engine."""
    with ExitStack() as stack:

        def start(engine: str) -> Town:
            folder = tmp_path_factory.mktemp("town")
            database = None if engine == "sqlite" else request.getfixturevalue("postgres").create_database()
            server = stack.enter_context(start_server(folder, auth=True, database=database))
            # A defect behind a refusal shows only in the log.
            stack.callback(lambda: _no_errors(server.log))
            return settle(server.url, server.admin_token)

        yield start


@pytest.fixture(scope="module")
def town(town_on: Callable[[str], Town]) -> Town:
    return town_on("sqlite")


def _no_errors(log: str) -> None:
    wrong = [line for line in log.splitlines() if "level=error" in line]
    assert wrong == []
