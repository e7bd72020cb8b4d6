"""The stored form of a ruling: its verdicts, encoded once for all jobs that share the ruling."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from switchyard.route.router import Eligibility
from switchyard.route.verdicts import encode_verdicts


@dataclass(frozen=True, slots=True)
class CachedEligibility:
    """A ruling with the stored form of its verdicts."""

    ruling: Eligibility
    verdicts_hash: str
    verdicts_body: str


def cache_eligibility(ruling: Eligibility) -> CachedEligibility:
    body = encode_verdicts(ruling.verdicts)
    return CachedEligibility(ruling, sha256(body).hexdigest(), body.decode())
