"""How large the body of each kind of call may be. The table of endpoints names one of these for each call."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.job import REQUEST_BYTES_MAX, REQUEST_VALUES_MAX

QUICK_DEMAND_BYTES = 4 * 1024  # of a job with a jobspec in it, which takes longer to decide
INLINE_BYTES = 16 * 1024  # decoded on the loop: 4 ms at most, and what nearly all callers send


@dataclass(frozen=True, slots=True)
class BodyBound:
    """The most that one kind of body may have. `name` is told in refusals."""

    name: str
    bytes_max: int
    values_max: int


JOB_BODY = BodyBound("job", REQUEST_BYTES_MAX, REQUEST_VALUES_MAX)
BULK_BODY = BodyBound("bulk request", 64 * 2**20, 4_000_000)  # 100,000 jobs of 40 values; each of them within JOB, too
# Reports, output, and an inventory of 100,000 beside as many that are being cancelled. In pieces; the rest as a job's.
POLL_BODY = BodyBound("poll", 64 * 2**20, 4_000_000)
LAYOUT_BODY = BodyBound("layout", 2**20, 65_536)  # pools, labels, queues, rules, token pools: of 20,000 clusters
SMALL_BODY = BodyBound("request", 256 * 2**10, 16_384)  # users, grants, tokens and all the rest
