"""What a vertex must have attached: a field of a subsystem that equals a value or lies in a range of versions. Pure.

Versions are compared as people mean them. Semver where both sides parse (missing parts allowed, `v1.2`): a prerelease
counts only if the bound has one too, and the missing parts of an upper bound are wildcards. Else dotted numbers part
by part (2023.1.0.1). Else only equality.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from switchyard.model.cluster.hardware import MEMORY_FIELD, OWN_SUBSYSTEM, TYPE_FIELD
from switchyard.model.graph import AttachedVertex, FieldValue
from switchyard.model.jobspec.devices import Device

VERSION_CHARS_MAX = 256
_SEMVER = re.compile(
    r"v?([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,18}))?"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?\Z"
)
_DOTTED = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})*\Z")

PrereleaseIdentifier = tuple[int, int, str]  # numbers before texts


@dataclass(frozen=True, slots=True)
class Requirement:
    """Met by one attached vertex of the subsystem whose field equals `match` and lies within `min` and `max`."""

    subsystem: str
    field: str
    match: str | None = None
    min: str | None = None
    max: str | None = None

    def is_met(self, attached: Iterable[AttachedVertex]) -> bool:
        return any(
            vertex.subsystem == self.subsystem
            and self.field in vertex.metadata
            and self._is_value_right(vertex.metadata[self.field])
            for vertex in attached
        )

    def _is_value_right(self, value: FieldValue) -> bool:
        return (
            (self.match is None or equals_text(value, self.match))
            and (self.min is None or is_at_least(show_metadata(value), self.min))
            and (self.max is None or is_at_most(show_metadata(value), self.max))
        )

    def values(self, attached: Iterable[AttachedVertex]) -> list[str]:
        """The values of the field at the attached vertices of the subsystem."""
        return [
            show_metadata(vertex.metadata[self.field])
            for vertex in attached
            if vertex.subsystem == self.subsystem and self.field in vertex.metadata
        ]

    @property
    def is_hardware(self) -> bool:
        """Whether it asks the vertex itself: a type of device, or the memory of each."""
        return self.subsystem == OWN_SUBSYSTEM

    def __str__(self) -> str:
        if self.is_hardware and self.field == TYPE_FIELD:
            return f"of type {self.match}"
        if self.is_hardware and self.field == MEMORY_FIELD and self.min is not None:
            return f"with at least {show_mb(int(self.min))}"
        parts = [
            f"= {self.match}" if self.match is not None else "",
            f"≥ {self.min}" if self.min is not None else "",
            f"≤ {self.max}" if self.max is not None else "",
        ]
        return f"{self.subsystem} {self.field} {' and '.join(part for part in parts if part)}"


def requirements_of(device: Device) -> tuple[Requirement, ...]:
    """What each unit of a device must be."""
    asked = [Requirement(OWN_SUBSYSTEM, TYPE_FIELD, match=device.type)] if device.type else []
    if device.memory_mb:
        asked.append(Requirement(OWN_SUBSYSTEM, MEMORY_FIELD, min=str(device.memory_mb)))
    return tuple(sorted(asked, key=repr))


def describe_hardware(attached: Iterable[AttachedVertex], asked: Iterable[Requirement]) -> list[str]:
    """`of type a100`: what a vertex tells of itself, one text for each type. With the memory, if it is asked."""
    has_memory = any(requirement.field == MEMORY_FIELD for requirement in asked)
    own = [vertex.metadata for vertex in attached if vertex.subsystem == OWN_SUBSYSTEM]
    return [
        f"of type {fields[TYPE_FIELD]}{f' with {show_mb(fields.get(MEMORY_FIELD))}' if has_memory else ''}"
        for fields in own
    ]


def show_mb(size: object) -> str:
    if not isinstance(size, int):
        return "memory that it does not tell"
    return f"{size // 1000}GB" if size % 1000 == 0 else f"{size}MB"


def equals_text(value: FieldValue, text: str) -> bool:
    """`true` is true, `1` and `1.0` are the number 1; a text is equal only to itself."""
    if isinstance(value, bool):
        return text.lower() == ("true" if value else "false")
    if isinstance(value, str):
        return value == text
    try:
        return float(text) == value if "_" not in text else False
    except ValueError:
        return False


def show_metadata(value: FieldValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


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
    match = _SEMVER.match(text) if len(text) <= VERSION_CHARS_MAX else None
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
    return tuple(map(int, bare.split("."))) if len(text) <= VERSION_CHARS_MAX and _DOTTED.match(bare) else None
