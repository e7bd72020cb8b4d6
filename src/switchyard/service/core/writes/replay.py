"""Replay the writes of a failed batch one at a time, so that one failing write does not harm the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from switchyard.errors import YardError
from switchyard.store.jobs.failures import Contention, StatementTimeout

CONFLICTS_MAX = 10  # tries of a write after deadlocks and serialization failures (PostgreSQL's 40P01 and 40001)
TIMEOUTS_MAX = 2  # lock timeouts before the remaining writes are refused: a timeout takes seconds

W = TypeVar("W")


def replay(writes: Iterable[W], commit: Callable[[W], Any]) -> list[Any]:
    """Return the result of each write; errors are values.

    After one lock timeout the others are still tried: they may need other locks. After TIMEOUTS_MAX the remaining
    writes are refused: they probably need the same lock, and would delay all queued writes.
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
