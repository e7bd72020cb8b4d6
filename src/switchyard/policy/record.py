"""The rules a job was admitted under, in their stored form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from switchyard.model.rules.attributes import JobPolicy, UsedValue
from switchyard.model.rules.scope import scope_of
from switchyard.policy.draft import EMPTY_SCOPE_KEY, Entry
from switchyard.policy.kinds.kind import Kinds


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """Rules as they are stored: once for all jobs that share them, by hash."""

    hash: str
    body: str


def encode_record(version: int, kinds: Kinds, flat: Mapping[tuple[str, str], Entry]) -> PolicyRecord:
    """Encode the values of the kinds that are for jobs, in the order of the kinds' numbers."""
    numbers = {kind.name: kind.number for kind in kinds if kind.is_for_jobs}
    used = [
        UsedValue(
            kind,
            path,
            entry.value,
            entry.source.level,
            None if entry.source.key == EMPTY_SCOPE_KEY else scope_of(entry.source.key),
            entry.source.row or None,
        )
        for (kind, path), entry in sorted(flat.items(), key=lambda item: (numbers.get(item[0][0], -1), item[0][1]))
        if kind in numbers and entry.value is not None
    ]
    body = msgspec.json.encode(JobPolicy(version, used)).decode()
    return PolicyRecord(sha256(body.encode()).hexdigest(), body)
