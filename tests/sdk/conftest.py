"""A peer for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sdk.peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as running:
        yield running
