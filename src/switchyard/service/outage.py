"""A database that is away for a moment: batches that were not committed wait for it, and nobody has to ask again."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from switchyard.store.failures import ConnectionLost

WAIT_S = 5.0  # a restart of PostgreSQL takes less
AGAIN_S = 0.05  # between two tries to reach it

R = TypeVar("R")


class Outage:
    """Since when the database cannot be reached. Belongs to the committer's thread."""

    def __init__(self) -> None:
        self._since: float | None = None

    def outlast(self, commit: Callable[[], R], *, is_closed: Callable[[], bool]) -> R:
        """Commit as soon as the database can be reached; raises ConnectionLost if it is away for longer than WAIT_S.

        A connection that was lost before its commit has changed nothing, so nothing can happen twice. If it was lost in
        the commit, that is in doubt, and the caller has to know. After WAIT_S every batch is refused at its first try,
        until one gets through.
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
