"""Which token pools a server has, what bounds them, and what it has counted of them since it started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from switchyard.tokens.noop import NoopPools
from switchyard.tokens.pools import LEASE_S_MAX, TokenPools


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A registered pool, as it is kept in memory."""

    quota: int
    per_s: int | None
    leased_until_us: int
    created_us: int
    changed_us: int
    changed_by: str


@dataclass
class TokenWaitCounts:
    """By namespace, of the server that leads: what waits. What only grows is in the tally."""

    waiting: Mapping[str, int] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)  # the longest that a job waited after it was refused


@dataclass(frozen=True)
class TokenSettings:
    """Wired once, in the server. `task_types`: what jobs of a type of task need, by the config."""

    pools: TokenPools = field(default_factory=NoopPools)
    type: str = "noop"
    quota_max: int = 100
    lease_s_max: int = LEASE_S_MAX
    task_types: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: TokenWaitCounts = field(default_factory=TokenWaitCounts)

    def leases_end_in_s(self, ahead_us: int, per_s: int | None) -> float:
        """How long callers may still hold tokens that a server granted before, by what it stored.

        Never longer than a server writes ahead (`pools.note_lease`): more is the word of a clock that was wrong.
        """
        most_s = max(self.lease_s_max, per_s or 0) + self.lease_s_max
        return min(most_s, max(0, ahead_us) / 1_000_000)
