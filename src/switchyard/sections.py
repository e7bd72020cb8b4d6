"""Structs of settings with the sections that features add to them: the server's config, the agent's site file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from switchyard.feature import import_place

Whole = TypeVar("Whole", bound=msgspec.Struct)
Section = TypeVar("Section", bound=msgspec.Struct)


def with_sections(whole: type[Whole], places: Mapping[str, str]) -> type[Whole]:
    """A struct with the sections of features, each with its defaults, or None if a field of it has no default."""
    sections = [
        (name, section, msgspec.field(default_factory=section))
        if all(not field.required for field in msgspec.structs.fields(section))
        else (name, section | None, None)
        for name, section in ((name, import_place(place)) for name, place in places.items())
    ]
    namespace = {"__doc__": whole.__doc__}
    made: Any = msgspec.defstruct(
        whole.__name__, sections, bases=(whole,), module=whole.__module__, namespace=namespace, frozen=True
    )
    with_all: type[Whole] = made
    return with_all


def section_of(whole: Any, name: str, kind: type[Section]) -> Section:
    """The section that a feature added. A struct that was made without features has none: then its defaults."""
    section: Section | None = getattr(whole, name, None)
    return section if section is not None else kind()
