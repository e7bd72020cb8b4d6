"""A kind of attribute: number, name, validated fields, levels, how rows merge, and what it does to a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from switchyard.errors import Conflict, UnknownName
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.scope import ROW_LEVELS, Level
from switchyard.model.wire.decode import convert
from switchyard.policy.draft import Draft, Entry
from switchyard.policy.platform import Platform


class Merge(StrEnum):
    """How the rows of several levels become one value."""

    FIELD = "per field"  # a row hides only what it sets
    KEY = "per key"  # the same for the keys of its one map
    REPLACE = "replace"  # the most specific row holds, whole


class Kind:
    """Base of all kinds. A subclass sets the five names below; most need no method of their own.

    Fields are paths: `limits.cpu`, `attributes.quota`, `value`. `flatten` and `assemble` turn a value into its set
    fields and back; the three merges need no more than the two below, driven by `merge` and `depth`.
    """

    number: ClassVar[int]
    name: ClassVar[str]  # as people write it: `task-resource-attribute`
    title: ClassVar[str]
    value: ClassVar[type[Struct]]
    merge: ClassVar[Merge]
    levels: ClassVar[tuple[Level, ...]] = ROW_LEVELS
    depth: ClassVar[int] = 1  # how many names deep a field lies: `limits.cpu` is two
    is_for_jobs: ClassVar[bool] = True
    is_for_platform_admins: ClassVar[bool] = False  # only they may write and delete rows, also those of projects
    sample: ClassVar[dict[str, Any]] = {}

    def read(self, raw: object) -> Struct:
        """Check plain data and return the value. An error names the place of the mistake."""
        return convert(raw, self.value, where=self.title)

    def check(self, value: Any, platform: Platform) -> list[str]:
        """Return mistakes that no single field shows: unknown names, fields that exclude each other."""
        return []

    def restrict(self, value: Any, level: Level) -> tuple[Struct, str]:
        """Return the part of a value that is allowed in a row of this level, and why the rest is not; empty: all is.

        Writing the rest is refused. Of a stored row, which may be older than the restriction, the rest is ignored.
        """
        return value, ""

    def flatten(self, value: Struct) -> dict[str, Any]:
        """Return the fields that are set; all fields if rows replace each other as a whole."""
        plain = msgspec.to_builtins(value)
        if self.merge is Merge.REPLACE:
            return {name: plain.get(name) for name in value.__struct_fields__}
        return dict(_paths(plain, self.depth))

    def assemble(self, fields: Mapping[str, Any]) -> Struct:
        """Return the value with these fields."""
        plain: dict[str, Any] = {}
        for path, value in fields.items():
            if value is None:
                continue
            *outer, last = path.split(".", self.depth - 1)
            place = plain
            for name in outer:
                place = place.setdefault(name, {})
            place[last] = value
        return msgspec.convert(plain, self.value)

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        """Apply the effective fields, which may be none, to a job that is being admitted."""
        return draft

    def take_back(self, request: JobRequest, values: Mapping[str, Any]) -> JobRequest:
        """Remove from an admitted request what these rule values added: a retry is admitted under the current rules."""
        return request


def _paths(plain: Mapping[str, Any], depth: int) -> Iterable[tuple[str, Any]]:
    for name, value in plain.items():
        if value is None:
            continue
        if depth > 1 and isinstance(value, Mapping):
            yield from ((f"{name}.{path}", inner) for path, inner in _paths(value, depth - 1))
        else:
            yield name, value


class Kinds:
    """All kinds a server knows, by name and by number."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.by_name: dict[str, Kind] = {}
        self.by_number: dict[int, Kind] = {}
        for kind in sorted(kinds, key=lambda kind: kind.number):
            for taken in (self.by_name.get(kind.name), self.by_number.get(kind.number)):
                if taken is not None:
                    raise Conflict(
                        f"Two attribute kinds share a name or number: {_describe(taken)} and {_describe(kind)}.",
                        next_step="Give one of them another, or uninstall its package.",
                    )
            self.by_name[kind.name] = kind
            self.by_number[kind.number] = kind

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    def get(self, name: str | int) -> Kind:
        """By name, or by number as a number or a text."""
        kind = self.by_name.get(str(name))
        if kind is None and str(name).isascii() and str(name).isdigit() and len(str(name)) < 10:
            kind = self.by_number.get(int(name))
        if kind is None:
            known = ", ".join(f"{known_kind.name} ({known_kind.number})" for known_kind in self)
            raise UnknownName(f"There is no attribute kind {str(name)[:80]!r}.", next_step=f"Known kinds: {known}.")
        return kind


def _describe(kind: Kind) -> str:
    return f"{type(kind).__module__}.{type(kind).__qualname__} ({kind.name}, {kind.number})"
