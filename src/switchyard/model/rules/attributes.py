"""The messages about attributes: rows as they are stored, effective values with their provenance, the kinds."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from switchyard.model.rules.scope import Level, Scope


class AttributeRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attribute, exactly at its scope. `etag` changes with each write; it is the answer's ETag, too."""

    id: str
    kind: str
    number: int
    level: Level
    scope: Scope
    value: dict[str, Any]
    etag: str
    changed_us: int = 0
    changed_by: str = ""


class EffectiveField(Struct, frozen=True, omit_defaults=True):
    """One effective value and the level that sets it. `scope` and `row`: of the row, if a row sets it."""

    field: str
    value: Any
    level: Level
    scope: Scope | None = None
    row: str | None = None


class EffectiveAttribute(Struct, frozen=True):
    """The effective value of one kind at a scope: `value` as a whole, `fields` one by one."""

    kind: str
    number: int
    scope: Scope
    value: dict[str, Any]
    fields: list[EffectiveField] = []


class PolicyView(Struct, frozen=True):
    """The effective values of all kinds at a scope."""

    version: int
    scope: Scope
    attributes: list[EffectiveAttribute] = []


class UsedValue(Struct, frozen=True, omit_defaults=True):
    """A value that took part in admitting a job, as it is recorded on the job."""

    kind: str
    field: str
    value: Any
    level: Level
    scope: Scope | None = None
    row: str | None = None


class JobPolicy(Struct, frozen=True):
    """The rules a job was admitted under."""

    version: int
    values: list[UsedValue] = []


class KindInfo(Struct, frozen=True):
    """A kind of attribute: what a client needs to show, write and check one. `value_schema` is JSON Schema."""

    name: str
    number: int
    title: str
    levels: list[Level]
    merge: str
    value_schema: dict[str, Any]
    sample: dict[str, Any] = {}


class Domain(Struct, frozen=True, omit_defaults=True):
    """A domain of the server's config."""

    id: str
    name: str = ""
