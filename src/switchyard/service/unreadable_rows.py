"""Rows that cannot be read: each is told once in the log, counted for the metrics, and skipped.

A value may be damaged on the disk, or written by a version that this one does not know. Either way one row must not
keep anybody from the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import structlog

from switchyard.model.unreadable import UNREADABLE_ERRORS

log = structlog.get_logger()
T = TypeVar("T")
LOGGED_MAX = 10_000  # rows that are remembered as told; of more, nothing is logged any more
_logged: set[tuple[str, str]] = set()
_lock = threading.Lock()


def log_unreadable(table: str, key: str, why: str) -> None:
    """Log that a row cannot be read, the first time that this process meets it."""
    with _lock:
        if (table, key) in _logged or len(_logged) >= LOGGED_MAX:
            return
        _logged.add((table, key))
    log.error("unreadable row", table=table, row=key, why=why[:300], next="docs/how-to/repair-a-row.md")


def unreadable_counts() -> dict[str, int]:
    """How many rows of each table this process could not read."""
    with _lock:
        return dict(Counter(table for table, _ in _logged))


def read_or_default(table: str, key: str, read: Callable[[], T], otherwise: T) -> T:
    """What `read` returns; of what it cannot read, which is told, the other value."""
    try:
        return read()
    except UNREADABLE_ERRORS as exc:
        log_unreadable(table, key, f"{type(exc).__name__}: {exc}")
        return otherwise


def read_each(table: str, rows: Iterable[Any], read: Callable[[Any], T], *, key: str = "id") -> list[T]:
    """What `read` makes of each row; rows that it cannot read are told and left out."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(read(row))
        except UNREADABLE_ERRORS as exc:
            log_unreadable(table, str(getattr(row, key, "")), f"{type(exc).__name__}: {exc}")
    return found
