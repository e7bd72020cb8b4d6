"""Retry batches during a short outage of the database, so that callers need not retry."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from switchyard.store.jobs.failures import ConnectionLost

WAIT_S = 5.0  # a restart of PostgreSQL takes less
AGAIN_S = 0.05  # between two tries

R = TypeVar("R")


class Outage:
    """Remembers when the database became unreachable. Only the committer's thread uses it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def retry_while_away(self, commit: Callable[[], R], *, is_closed: Callable[[], bool]) -> R:
        """Commit, retrying while the database is unreachable. Raises ConnectionLost after WAIT_S.

        A connection lost before the commit changed nothing, so a retry is safe. If the connection is lost during the
        commit, the outcome is in doubt, and this raises at once. After WAIT_S every batch fails at its first try,
        until a batch succeeds.
        """
        while True:
            began = monotonic()
            try:
                result = commit()
            except ConnectionLost as exc:
                self._since = began if self._since is None else self._since
                if exc.is_in_doubt or is_closed() or monotonic() - self._since >= WAIT_S:
                    raise
                sleep(AGAIN_S)
            except BaseException:
                self._since = None
                raise
            else:
                self._since = None
                return result
