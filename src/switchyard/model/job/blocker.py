"""Blockers: causes for which the router skips a PENDING job.

The column `blocked` of a job holds them, sorted and joined by commas. The words never change, and a word of a newer
server is kept as it is.
"""

from __future__ import annotations

from enum import StrEnum


class Blocker(StrEnum):
    """Why the router skips a PENDING job."""

    AFTER = "after"  # the job waits for the end of other jobs
    BACKOFF = "backoff"  # the next try has a time (`wake_us`)
    HOLD = "hold"  # a user holds the job
    QUEUE = "queue"  # the job waits for a place in its queue
    QUOTES = "quotes"  # the job waits for quotes of clusters
    UNREADABLE = "unreadable"  # the job's row is damaged


_BEFORE_THE_WAIT = frozenset({Blocker.HOLD, Blocker.AFTER})


def has_blocker(blocked: str | None, blocker: Blocker) -> bool:
    return blocked is not None and blocker in blocked.split(",")


def is_held_back(blocked: str | None) -> bool:
    """Whether a job is held or waits for other jobs. This time does not count as waiting for a cluster."""
    return blocked is not None and not _BEFORE_THE_WAIT.isdisjoint(blocked.split(","))


def change_blocked(blocked: str | None, *, add: Blocker | None = None, remove: Blocker | None = None) -> str | None:
    """Return the column `blocked` with one blocker more or less. None: nothing blocks the job."""
    blockers = set(blocked.split(",")) if blocked else set()
    if add is not None:
        blockers.add(add)
    blockers -= {"", remove}
    return ",".join(sorted(blockers)) or None
