"""Where jobs went, counted: the messages of the API."""

from __future__ import annotations

from msgspec import Struct

STATS_DIMENSIONS = ("cluster", "pool", "label", "queue", "outcome", "reason")


class OutcomeCounts(Struct, frozen=True, omit_defaults=True):
    """Jobs of one name, counted by outcome. `ended`: cancelled or expired before a cluster was chosen."""

    name: str
    assigned: int = 0
    pending: int = 0
    rejected: int = 0
    ended: int = 0

    @property
    def total(self) -> int:
        return self.assigned + self.pending + self.rejected + self.ended


class RouteStats(Struct, frozen=True):
    """Counts of visible jobs made since a time. `is_whole`: all of them were counted; else only the newest."""

    since_us: int
    looked_at: int
    is_whole: bool
    jobs: int
    by: dict[str, list[OutcomeCounts]]
