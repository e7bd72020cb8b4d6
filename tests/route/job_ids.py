"""Ids of jobs, the same in each run: enough to see shares within a percentage point."""

from __future__ import annotations

from functools import cache

from switchyard.model.wire.ids import make_id

COUNT = 100_000


@cache
def job_ids() -> list[str]:
    """Made when the first test asks: each worker of a run imports this module, and few run its tests."""
    return [make_id(1_700_000_000_000_000 + 137 * n, n * 0x9E3779B97F4A7C15) for n in range(COUNT)]
