"""The server's settings, limits and counts of token pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from switchyard.tokens.noop import NoopPools
from switchyard.tokens.pools import LEASE_S_MAX, TokenPools


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A registered pool in the snapshot."""

    quota: int
    per_s: int | None
    leased_until_us: int
    created_us: int
    changed_us: int
    changed_by: str


@dataclass
class TokenWaitCounts:
    """Jobs that wait for tokens, by pool, as the leader counts them. Counters are in ProcessMetrics."""

    waiting: Mapping[str, int] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)  # longest wait of a job since its first refusal


@dataclass(frozen=True)
class TokenSettings:
    """Built once by the server. `task_types`: tokens that the config demands, by task type."""

    pools: TokenPools = field(default_factory=NoopPools)
    type: str = "noop"
    quota_max: int = 100
    lease_s_max: int = LEASE_S_MAX
    task_types: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: TokenWaitCounts = field(default_factory=TokenWaitCounts)

    def leases_end_in_s(self, ahead_us: int, per_s: int | None) -> float:
        """Return how long callers may still hold tokens from before a restart, according to the stored time.

        Capped at the most that a server stores ahead (`pools.note_lease`): a later time comes from a wrong clock.
        """
        max_s = max(self.lease_s_max, per_s or 0) + self.lease_s_max
        return min(max_s, max(0, ahead_us) / 1_000_000)
