"""Wait at the start of a server for a PostgreSQL that is not up yet, as after a power cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from switchyard.store.engine.clock import database_us
from switchyard.store.engine.database import Database
from switchyard.store.jobs.failures import ConnectionLost

DATABASE_WAIT_S = 60.0  # then the server gives up, and its service manager decides
PAUSE_S = 1.0
# PostgreSQL answers and refuses: a wrong password, an unknown database. While it starts or recovers, it says that.
REFUSED = "FATAL"
STARTING_REASONS = ("starting up", "not yet accepting", "in recovery", "shutting down")

log = structlog.get_logger()
T = TypeVar("T")


def wait_for_database(
    database: Database,
    *,
    wait_s: float = DATABASE_WAIT_S,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return once PostgreSQL answers. Raise at once if it refuses, and ConnectionLost if it does not come in time."""
    if database.is_sqlite:
        return
    until, is_logged = now() + wait_s, False
    while True:
        try:
            database_us(database)
        except ConnectionLost as exc:
            message = str(exc.__cause__)
            is_refused = REFUSED in message and not any(reason in message for reason in STARTING_REASONS)
            if is_refused or now() >= until:
                raise
            if not is_logged:
                log.warning("waiting for the database", error=exc.inner, at_most_s=wait_s)
                is_logged = True
            pause(PAUSE_S)
        else:
            return


def while_database_restarts(
    database: Database,
    step: Callable[[], T],
    *,
    wait_s: float = DATABASE_WAIT_S,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """Run a step of the server's start, and again if PostgreSQL goes away during it. The step may be repeated."""
    until = now() + wait_s
    while True:
        try:
            return step()
        except ConnectionLost as exc:
            if database.is_sqlite or now() >= until:
                raise
            log.warning("the database went away during the start", error=exc.inner, at_most_s=wait_s)
        pause(PAUSE_S)
        wait_for_database(database, wait_s=max(0.0, until - now()), now=now, pause=pause)
