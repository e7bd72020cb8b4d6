"""Effective rules: a snapshot of all rows, each flattened to its fields, merged when a scope is first asked for.

launch plan > workflow > project+domain > project > domain > platform config. Each value carries its provenance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from switchyard.model.rules.scope import Level, ScopeKey, level_of
from switchyard.policy.draft import EMPTY_SCOPE_KEY, Entry, Provenance
from switchyard.policy.kinds import BUILTIN_KINDS, Kinds
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind
from switchyard.policy.kinds.job_priority import JOB_PRIORITY, nearest_priority
from switchyard.policy.kinds.kind import Kind
from switchyard.policy.platform import Platform
from switchyard.policy.record import PolicyRecord, encode_record

FlatRules = dict[tuple[str, str], Entry]  # (kind, field) → value with provenance
CACHED_SCOPES_MAX = 100_000  # a job may name any workflow, so the number of rows does not bound them


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A stored row. `value` none: the row was deleted."""

    id: str
    kind: str
    key: ScopeKey
    value: Struct | None


@dataclass(frozen=True, eq=False)
class EffectiveRules:
    """The rules that hold at one scope. Immutable: the cached properties follow from the fields alone."""

    key: ScopeKey
    flat: Mapping[tuple[str, str], Entry]
    kinds: Kinds
    version: int

    @cached_property
    def rules_for_jobs(self) -> list[tuple[Kind, Mapping[str, Entry]]]:
        """The kinds that set something for jobs here, each with its fields."""
        return [(kind, fields) for kind in self.kinds if kind.is_for_jobs and (fields := self.fields(kind))]

    @cached_property
    def record(self) -> PolicyRecord:
        """The record of a job that overrides nothing."""
        return encode_record(self.version, self.kinds, self.flat)

    @cached_property
    def default_priority(self) -> int:
        """The priority of a job that asks for none."""
        return nearest_priority(0, self.fields(JOB_PRIORITY))

    def fields(self, kind: Kind) -> Mapping[str, Entry]:
        """The fields of one kind that are set anywhere, each with its provenance."""
        return self._fields_by_kind.get(kind.name, _NO_FIELDS)

    @cached_property
    def _fields_by_kind(self) -> dict[str, dict[str, Entry]]:
        fields: dict[str, dict[str, Entry]] = {}
        for (kind, path), entry in self.flat.items():
            fields.setdefault(kind, {})[path] = entry
        return fields

    def value(self, kind: Kind) -> Struct | None:
        """The kind's whole effective value; none where nothing is set."""
        fields = self.fields(kind)
        return kind.assemble({path: entry.value for path, entry in fields.items()}) if fields else None


class Policy:
    """All rules at one version. A change makes a new policy with an empty cache."""

    def __init__(
        self,
        version: int,
        *,
        kinds: Kinds,
        platform: Platform,
        rows: Mapping[ScopeKey, Mapping[str, FlatRules]] | None = None,
    ) -> None:
        self.version = version
        self.kinds = kinds
        self.platform = platform
        self._rows: dict[ScopeKey, Mapping[str, FlatRules]] = dict(rows or {})
        self._merged: dict[ScopeKey, FlatRules] = {
            key: _merge_kinds(rules_by_kind) for key, rules_by_kind in self._rows.items()
        }
        self._base = {domain: _platform_values(kinds, platform, domain) for domain in ("", *platform.domains)}
        self._cache: dict[ScopeKey, EffectiveRules] = {}

    def changed(self, version: int, rows: Iterable[RuleRow]) -> Policy:
        """Return the next snapshot, with these rows changed."""
        policy = Policy.__new__(Policy)
        policy.version, policy.kinds, policy.platform, policy._base = version, self.kinds, self.platform, self._base
        policy._rows, policy._merged, policy._cache = dict(self._rows), dict(self._merged), {}
        touched: dict[ScopeKey, dict[str, FlatRules]] = {}
        for row in rows:
            if (kind := self.kinds.by_name.get(row.kind)) is None:
                continue  # the package of this kind is not installed here: the row has no effect
            rules_by_kind = touched.setdefault(row.key, dict(policy._rows.get(row.key, {})))
            rules_by_kind.pop(row.kind, None)
            if row.value is not None:
                rules_by_kind[row.kind] = flatten_row(kind, row)
        for key, rules_by_kind in touched.items():
            if rules_by_kind:
                policy._rows[key], policy._merged[key] = rules_by_kind, _merge_kinds(rules_by_kind)
            else:
                policy._rows.pop(key, None)
                policy._merged.pop(key, None)
        return policy

    def on(self, platform: Platform) -> Policy:
        """Return a policy with the same rows and another platform config."""
        return Policy(self.version, kinds=self.kinds, platform=platform, rows=self._rows)

    def effective(self, key: ScopeKey) -> EffectiveRules:
        """Return the rules that hold at a scope."""
        effective = self._cache.get(key)
        if effective is None:
            if len(self._cache) >= CACHED_SCOPES_MAX:
                self._cache.clear()
            effective = self._cache[key] = self._resolve(key)
        return effective

    @property
    def keys(self) -> Iterable[ScopeKey]:
        """The scopes that have rows."""
        return self._rows.keys()

    def layers(self, key: ScopeKey) -> list[FlatRules]:
        """Return the values of each level that applies at a scope, the least specific first.

        Without a project or domain some levels are equal.
        """
        domain, project, workflow, launch_plan = key
        rows = self._merged.get
        levels: list[FlatRules | None] = [self._base.get(domain) or self._base[""]]
        levels += [rows((domain, "", "", "")), rows(("", project, "", "")), rows((domain, project, "", ""))]
        if workflow:
            levels.append(rows((domain, project, workflow, "")))
            if launch_plan:
                levels.append(rows(key))
        return [level for level in levels if level is not None]

    def _resolve(self, key: ScopeKey) -> EffectiveRules:
        flat: FlatRules = {}
        for level in self.layers(key):
            flat.update(level)
        label = flat.get(_LABEL)
        if label is not None and label.source.level is Level.PLATFORM and _POOL in flat:
            del flat[_LABEL]  # the configured default label is for jobs without a pool
        return EffectiveRules(key, flat, self.kinds, self.version)


_NO_FIELDS: dict[str, Entry] = {}
_LABEL = (ExecutionClusterLabelKind.name, "value")
_POOL = (ClusterAssignmentKind.name, "cluster_pool_name")


def flatten_row(kind: Kind, row: RuleRow) -> FlatRules:
    """A row as the fields it sets, each with the row as its source."""
    assert row.value is not None
    source = Provenance(level_of(row.key), row.key, row.id)
    return {(kind.name, path): Entry(value, source) for path, value in kind.flatten(row.value).items()}


def _merge_kinds(rules_by_kind: Mapping[str, FlatRules]) -> FlatRules:
    """Put all kinds of one scope into one mapping, so that a new scope costs one update per level."""
    merged: FlatRules = {}
    for flat in rules_by_kind.values():
        merged.update(flat)
    return merged


def _platform_values(kinds: Kinds, platform: Platform, domain: str) -> FlatRules:
    """The values that the config sets for everyone, then for one domain."""
    flat: FlatRules = {}
    for key, values in (
        (EMPTY_SCOPE_KEY, platform.values),
        ((domain, "", "", ""), platform.domain_values.get(domain, {})),
    ):
        source = Provenance(Level.PLATFORM, key)
        for name, value in values.items():
            kind = kinds.by_name[name]
            flat.update({(name, path): Entry(inner, source) for path, inner in kind.flatten(value).items()})
    return flat


def empty_policy(platform: Platform | None = None, kinds: Kinds | None = None) -> Policy:
    """The policy before the first read of the store: the config alone."""
    return Policy(-1, kinds=kinds or Kinds(BUILTIN_KINDS), platform=platform or Platform())
