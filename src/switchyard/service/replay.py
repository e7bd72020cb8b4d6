"""A batch that failed, replayed one write at a time: what keeps one write from its commit must not harm the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from switchyard.errors import YardError
from switchyard.store.failures import Contention, StatementTimeout

CONFLICTS_MAX = 10  # tries of a write that deadlocks, or conflicts with another (PostgreSQL's 40P01 and 40001)
TIMEOUTS_MAX = 2  # writes that wait for a lock in vain before the rest are refused: each costs seconds

W = TypeVar("W")


def replay(writes: Iterable[W], commit: Callable[[W], Any]) -> list[Any]:
    """The result of each write, an error as a value.

    A lock that one write needs in vain is no reason to refuse the others. A lock that all of them need would keep each
    of them waiting in turn, and what is queued behind them, so the rest are refused after two.
    """
    results: list[Any] = []
    timeouts = 0
    for write in writes:
        result = StatementTimeout() if timeouts >= TIMEOUTS_MAX else _replay_one(write, commit)
        timeouts += isinstance(result, StatementTimeout)
        results.append(result)
    return results


def _replay_one(write: W, commit: Callable[[W], Any]) -> Any:
    result: Any = None
    for _ in range(CONFLICTS_MAX):
        try:
            return commit(write)
        except Contention as exc:
            result = exc
        except YardError as exc:
            return exc
    return result
