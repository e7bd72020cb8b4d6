"""Skip unreadable rows. A row is logged once and counted for the metrics.

A value may be damaged on disk, or written by a newer version. One bad row must not block the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import structlog

from switchyard.model.job.unreadable import UNREADABLE_ERRORS

log = structlog.get_logger()
T = TypeVar("T")
LOGGED_MAX = 10_000  # remembered rows; further rows are neither logged nor counted
_logged: set[tuple[str, str]] = set()
_lock = threading.Lock()


def log_unreadable(table: str, key: str, reason: str) -> None:
    """Log an unreadable row, once per process."""
    with _lock:
        if (table, key) in _logged or len(_logged) >= LOGGED_MAX:
            return
        _logged.add((table, key))
    log.error("unreadable row", table=table, row=key, why=reason[:300], next="docs/how-to/repair-a-row.md")


def unreadable_counts() -> dict[str, int]:
    """Return the number of unreadable rows that this process has met, by table."""
    with _lock:
        return dict(Counter(table for table, _ in _logged))


def read_or_default(table: str, key: str, read: Callable[[], T], default: T) -> T:
    """Return `read()`. If the stored value is unreadable, log it once and return `default`."""
    try:
        return read()
    except UNREADABLE_ERRORS as exc:
        log_unreadable(table, key, f"{type(exc).__name__}: {exc}")
        return default


def read_each(table: str, rows: Iterable[Any], read: Callable[[Any], T], *, key: str = "id") -> list[T]:
    """Return `read(row)` for every row. Unreadable rows are logged and skipped."""
    readable: list[T] = []
    for row in rows:
        try:
            readable.append(read(row))
        except UNREADABLE_ERRORS as exc:
            log_unreadable(table, str(getattr(row, key, "")), f"{type(exc).__name__}: {exc}")
    return readable
