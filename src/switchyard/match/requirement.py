"""What a vertex must have attached: a field of a subsystem that equals a value or lies in a range of versions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from switchyard.match.version import is_at_least, is_at_most
from switchyard.model.cluster.hardware import MEMORY_FIELD, OWN_SUBSYSTEM, TYPE_FIELD
from switchyard.model.graph import AttachedVertex, FieldValue
from switchyard.model.jobspec.devices import Device


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
