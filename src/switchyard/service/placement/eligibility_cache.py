"""The stored form of an eligibility: its verdicts, encoded once for all jobs that share it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from switchyard.route.router import Eligibility
from switchyard.route.verdicts import encode_verdicts


@dataclass(frozen=True, slots=True)
class CachedEligibility:
    """An eligibility with the stored form of its verdicts."""

    eligibility: Eligibility
    verdicts_hash: str
    verdicts_body: str


def cache_eligibility(eligibility: Eligibility) -> CachedEligibility:
    body = encode_verdicts(eligibility.verdicts)
    return CachedEligibility(eligibility, sha256(body).hexdigest(), body.decode())
