"""Failed attempts, counted: the messages of the API."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from switchyard.model.failures.failure_kind import FailureKind

FAILURE_DIMENSIONS = ("cluster", "kind", "node", "owner")
FailureDimension = Literal["cluster", "kind", "node", "owner"]


class FailureCount(Struct, frozen=True, omit_defaults=True):
    """How many attempts failed of those with one name: in all, and by kind."""

    name: str
    count: int = 0
    kinds: dict[FailureKind, int] = {}


class FailureStats(Struct, frozen=True):
    """Counts of failed attempts since a time, of visible jobs and of tasks. `is_whole`: all were counted; else only the
    newest `looked_at`."""

    since_us: int
    by: str
    looked_at: int
    is_whole: bool
    failures: int
    rows: list[FailureCount]
