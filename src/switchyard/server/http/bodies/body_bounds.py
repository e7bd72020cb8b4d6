"""Bounds of bodies, one for each kind of call. An endpoint names one of them."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.job.job import REQUEST_BYTES_MAX, REQUEST_VALUES_MAX

QUICK_DEMAND_BYTES = 4 * 1024  # a job with a larger jobspec is not decided on the loop
BODY_S_MAX = 600  # for a whole body, on average: 110 kB/s of the largest
INLINE_BYTES = 16 * 1024  # decoded on the loop, in at most 4 ms; nearly all bodies are smaller


@dataclass(frozen=True, slots=True)
class BodyBound:
    """The bounds of one kind of body. `name` is shown in refusals."""

    name: str
    bytes_max: int
    values_max: int


JOB_BODY = BodyBound("job", REQUEST_BYTES_MAX, REQUEST_VALUES_MAX)
BULK_BODY = BodyBound(
    "bulk request", 64 * 2**20, 4_000_000
)  # 100,000 jobs of 40 values; each job is within JOB_BODY, too
# Reports, output, an inventory of 100,000 attempts and as many cancels, decoded in pieces. Other fields: as a job's.
POLL_BODY = BodyBound("poll", 64 * 2**20, 4_000_000)
LAYOUT_BODY = BodyBound("layout", 2**20, 65_536)  # pools, labels, queues, rules, token pools: of 20,000 clusters
ENTITY_BODY = BodyBound("Flyte entity", 8 * 2**20, 2**18)  # 10,000 nodes; gRPC has room for more
OBJECTS_BODY = BodyBound("list of objects", 2**20, 32_768)  # 10,000 hashes and sizes; messages about outputs
LEAVE_BODY = BodyBound("leave", 2**20, 32_768)  # 10,000 attempts that have not begun
VIEW_BODY = BodyBound("view of a file", 512 * 2**10, 256)  # 256 KiB in base64
SMALL_BODY = BodyBound("request", 256 * 2**10, 16_384)  # users, grants, tokens and all others
