"""The rules of one scope for people: each value with what it hides, the scope's own rows, and who may change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Denied
from switchyard.model.rules.access import Role
from switchyard.model.rules.attributes import AttributeRow, EffectiveField
from switchyard.model.rules.scope import Level, Scope, ScopeKey, scope_of
from switchyard.policy.draft import Entry
from switchyard.policy.kinds.kind import Kind
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.rules import attributes

WORKFLOW_SCOPES_MAX = 200  # of one project


@dataclass(frozen=True, slots=True)
class HiddenValue:
    """A value that does not hold, because a more specific level sets another one."""

    value: Any
    level: Level
    scope: Scope | None


@dataclass(frozen=True, slots=True)
class RuleField:
    """An effective value. `hides`: the values under it, the most specific first."""

    effective: EffectiveField
    hides: list[HiddenValue]


@dataclass(frozen=True, slots=True)
class ScopeRule:
    """One kind of rule at a scope. `row`: what is set exactly here. `may_write`: the reader may set it here."""

    kind: str
    title: str
    sample: Mapping[str, object]
    fields: list[RuleField]
    row: AttributeRow | None
    may_write: bool


def scope_rules(context: Context, actor: Actor, scope: Scope) -> list[ScopeRule]:
    """Return the kinds that hold at a scope, or that the reader may set there."""
    view = attributes.policy_view(context, actor, scope)
    effective = {attribute.kind: attribute.fields for attribute in view.attributes}
    policy = context.snapshots.policy
    layers = policy.layers(scope.key)
    rows = attributes.rows_at(context, actor, scope)
    rules = []
    for kind in policy.kinds:
        may_write = _may_write(context, actor, kind, scope)
        fields = effective.get(kind.name, [])
        if fields or may_write:
            shown = [RuleField(field, _hidden(layers, kind, field)) for field in fields]
            rules.append(ScopeRule(kind.name, kind.title, dict(kind.sample), shown, rows.get(kind.name), may_write))
    return rules


def _hidden(layers: list[dict[tuple[str, str], Entry]], kind: Kind, field: EffectiveField) -> list[HiddenValue]:
    entries: list[Entry] = []
    for layer in reversed(layers):
        entry = layer.get((kind.name, field.field))
        if entry is not None and entry.value is not None and all(entry.source != one.source for one in entries):
            entries.append(entry)
    return [HiddenValue(entry.value, entry.source.level, _scope_or_none(entry.source.key)) for entry in entries[1:]]


def _scope_or_none(key: ScopeKey) -> Scope | None:
    return scope_of(key) if any(key) else None


def _may_write(context: Context, actor: Actor, kind: Kind, scope: Scope) -> bool:
    if scope.level not in kind.levels:
        return False
    try:
        attributes.require_write(context, actor, kind, scope)
    except Denied:
        return False
    return True


def workflow_scopes(context: Context, actor: Actor, project: str) -> list[Scope]:
    """Return the workflows and launch plans of a project that have rules of their own."""
    if not actor.may_project(Role.VIEW, project):
        return []
    keys = sorted(key for key in context.snapshots.policy.keys if key[1] == project and key[2])
    return [scope_of(key) for key in keys[:WORKFLOW_SCOPES_MAX]]
