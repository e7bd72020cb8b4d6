"""What a vertex must have attached: a field of a subsystem that equals a value or lies in a range of versions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from switchyard.match.version import is_at_least, is_at_most
from switchyard.model.graph import AttachedVertex, FieldValue


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

    def __str__(self) -> str:
        parts = [
            f"= {self.match}" if self.match is not None else "",
            f"≥ {self.min}" if self.min is not None else "",
            f"≤ {self.max}" if self.max is not None else "",
        ]
        return f"{self.subsystem} {self.field} {' and '.join(part for part in parts if part)}"


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
