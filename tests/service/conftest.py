"""A rig for each test of the services, on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.rig import Rig, running
from tests.store.prepared import postgres_url, sqlite_url, store_url

__all__ = ["postgres_url", "sqlite_url", "store_url"]


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    """The services on SQLite, then on PostgreSQL."""
    with running(store_url, tmp_path) as rig:
        yield rig


@pytest.fixture
def lite(sqlite_url: str, tmp_path: Path) -> Iterator[Rig]:
    """The services on SQLite alone: for rules that no database has a part in."""
    with running(sqlite_url, tmp_path) as rig:
        yield rig
