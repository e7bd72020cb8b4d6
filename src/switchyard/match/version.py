"""Versions, compared as people mean them. Pure.

Semver where both sides parse (missing parts allowed, `v1.2`): a prerelease counts only if the bound has one too, and
the missing parts of an upper bound are wildcards. Else dotted numbers part by part (2023.1.0.1). Else only equality.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

TEXT_CHARS_MAX = 256
_SEMVER = re.compile(
    r"v?([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,18}))?"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?\Z"
)
_DOTTED = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})*\Z")

PrereleaseIdentifier = tuple[int, int, str]  # numbers before texts


@dataclass(frozen=True, slots=True)
class _Semver:
    numbers: tuple[int, ...]  # as many as were written
    pre: tuple[PrereleaseIdentifier, ...]


def is_at_least(version: str, bound: str) -> bool:
    """`version` ≥ `bound`."""
    parsed, limit = _semver(version), _semver(bound)
    if parsed and limit:
        if parsed.pre and not limit.pre:
            return False
        return _sort_key(parsed) >= _sort_key(limit)
    return _by_parts(version, bound, is_upper=False)


def is_at_most(version: str, bound: str) -> bool:
    """`version` ≤ `bound`; 0.5.9 is at most 0.5."""
    parsed, limit = _semver(version), _semver(bound)
    if parsed and limit:
        if parsed.pre and not limit.pre:
            return False
        if not limit.pre and len(limit.numbers) < 3:
            return _filled(parsed.numbers)[: len(limit.numbers)] <= limit.numbers
        return _sort_key(parsed) <= _sort_key(limit)
    return _by_parts(version, bound, is_upper=True)


def _by_parts(version: str, bound: str, *, is_upper: bool) -> bool:
    parts, limit = _dotted(version), _dotted(bound)
    if parts is None or limit is None:
        return version == bound
    if is_upper:
        return _padded(parts, len(limit))[: len(limit)] <= limit
    length = max(len(parts), len(limit))
    return _padded(parts, length) >= _padded(limit, length)


@lru_cache(maxsize=65_536)
def _semver(text: str) -> _Semver | None:
    match = _SEMVER.match(text) if len(text) <= TEXT_CHARS_MAX else None
    if not match:
        return None
    numbers = tuple(int(part) for part in match.groups()[:3] if part is not None)
    pre = tuple(_identifier(part) for part in match[4].split(".")) if match[4] else ()
    return _Semver(numbers, pre)


def _identifier(part: str) -> PrereleaseIdentifier:
    return (0, int(part), "") if part.isascii() and part.isdigit() and len(part) < 19 else (1, 0, part)


def _sort_key(version: _Semver) -> tuple[tuple[int, ...], bool, tuple[PrereleaseIdentifier, ...]]:
    """A release comes after its prereleases."""
    return _filled(version.numbers), not version.pre, version.pre


def _filled(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return _padded(numbers, 3)


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


def _dotted(text: str) -> tuple[int, ...] | None:
    bare = text.removeprefix("v")
    return tuple(map(int, bare.split("."))) if len(text) <= TEXT_CHARS_MAX and _DOTTED.match(bare) else None
