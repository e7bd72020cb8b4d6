"""Effective values: an immutable snapshot of all rows, flattened when written, merged when a scope is first asked.

launch plan > workflow > project+domain > project > domain > platform config. Provenance rides in each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from switchyard.model.scope import Level, ScopeKey, level_of
from switchyard.policy.draft import EMPTY_SCOPE_KEY, Entry, Provenance
from switchyard.policy.kinds import BUILTIN_KINDS, Kinds
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind
from switchyard.policy.kinds.kind import Kind
from switchyard.policy.platform import Platform

FlatRules = dict[tuple[str, str], Entry]  # (kind, field) → value with provenance
CACHED_SCOPES_MAX = 100_000  # scopes remembered; a job may name any workflow, so they are not bounded by the rows


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A stored row as the snapshot takes it. `value` none: the row is gone."""

    id: str
    kind: str
    key: ScopeKey
    value: Struct | None


class EffectiveRules:
    """What holds at one scope; immutable. `record` is kept here by admission, which makes it once."""

    __slots__ = ("_fields", "_ruled", "flat", "key", "record")

    def __init__(self, key: ScopeKey, flat: FlatRules) -> None:
        self.key = key
        self.flat = flat
        self.record: Any = None
        self._fields: dict[str, dict[str, Entry]] | None = None
        self._ruled: list[tuple[Kind, Mapping[str, Entry]]] | None = None

    def ruled(self, kinds: Kinds) -> list[tuple[Kind, Mapping[str, Entry]]]:
        """The kinds that say something to a job here."""
        if self._ruled is None:
            self._ruled = [(kind, found) for kind in kinds if kind.is_for_jobs and (found := self.fields(kind))]
        return self._ruled

    def fields(self, kind: Kind) -> Mapping[str, Entry]:
        """The fields of one kind that are set anywhere, each with its provenance."""
        if self._fields is None:
            found: dict[str, dict[str, Entry]] = {}
            for (name, path), entry in self.flat.items():
                found.setdefault(name, {})[path] = entry
            self._fields = found
        return self._fields.get(kind.name, _NONE)

    def value(self, kind: Kind) -> Struct | None:
        """The kind's whole effective value; none where nothing is set."""
        fields = self.fields(kind)
        return kind.assemble({path: entry.value for path, entry in fields.items()}) if fields else None


class Policy:
    """All rules at one version. A change makes a new one, with nothing remembered."""

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
            key: _merge_kinds(kinds_here) for key, kinds_here in self._rows.items()
        }
        self._base = {domain: _platform_values(kinds, platform, domain) for domain in ("", *platform.domains)}
        self._seen: dict[ScopeKey, EffectiveRules] = {}

    def changed(self, version: int, rows: Iterable[RuleRow]) -> Policy:
        """The next snapshot: the same rows but for these."""
        policy = Policy.__new__(Policy)
        policy.version, policy.kinds, policy.platform, policy._base = version, self.kinds, self.platform, self._base
        policy._rows, policy._merged, policy._seen = dict(self._rows), dict(self._merged), {}
        touched: dict[ScopeKey, dict[str, FlatRules]] = {}
        for row in rows:
            if (kind := self.kinds.by_name.get(row.kind)) is None:
                continue  # its package is not installed here: the row is kept, and means nothing
            here = touched.setdefault(row.key, dict(policy._rows.get(row.key, {})))
            here.pop(row.kind, None)
            if row.value is not None:
                here[row.kind] = flatten_row(kind, row)
        for key, here in touched.items():
            if here:
                policy._rows[key], policy._merged[key] = here, _merge_kinds(here)
            else:
                policy._rows.pop(key, None)
                policy._merged.pop(key, None)
        return policy

    def on(self, platform: Platform) -> Policy:
        """The same rows, on another platform config."""
        return Policy(self.version, kinds=self.kinds, platform=platform, rows=self._rows)

    def effective(self, key: ScopeKey) -> EffectiveRules:
        """What holds at a scope."""
        found = self._seen.get(key)
        if found is None:
            if len(self._seen) >= CACHED_SCOPES_MAX:
                self._seen.clear()
            found = self._seen[key] = self._resolve(key)
        return found

    def _resolve(self, key: ScopeKey) -> EffectiveRules:
        """The least specific first. Where a word is not given two of these are the same, which does no harm."""
        domain, project, workflow, launch_plan = key
        rows = self._merged.get
        flat = dict(self._base.get(domain) or self._base[""])
        levels = [rows((domain, "", "", "")), rows(("", project, "", "")), rows((domain, project, "", ""))]
        if workflow:
            levels.append(rows((domain, project, workflow, "")))
            if launch_plan:
                levels.append(rows(key))
        for level in levels:
            if level is not None:
                flat.update(level)
        label = flat.get(_LABEL)
        if label is not None and label.source.level is Level.PLATFORM and _POOL in flat:
            del flat[_LABEL]  # the configured default label is for jobs that no pool bounds
        return EffectiveRules(key, flat)


_NONE: dict[str, Entry] = {}
_LABEL = (ExecutionClusterLabelKind.name, "value")
_POOL = (ClusterAssignmentKind.name, "cluster_pool_name")


def flatten_row(kind: Kind, row: RuleRow) -> FlatRules:
    """A row as the fields it sets, each with the row as its source."""
    assert row.value is not None
    source = Provenance(level_of(row.key), row.key, row.id)
    return {(kind.name, path): Entry(value, source) for path, value in kind.flatten(row.value).items()}


def _merge_kinds(here: Mapping[str, FlatRules]) -> FlatRules:
    """All kinds of one scope in one mapping: one update per level is all that a new scope costs."""
    found: FlatRules = {}
    for flat in here.values():
        found.update(flat)
    return found


def _platform_values(kinds: Kinds, platform: Platform, domain: str) -> FlatRules:
    """What the config says for everyone, then for one domain."""
    found: FlatRules = {}
    for key, values in (
        (EMPTY_SCOPE_KEY, platform.values),
        ((domain, "", "", ""), platform.domain_values.get(domain, {})),
    ):
        source = Provenance(Level.PLATFORM, key)
        for name, value in values.items():
            kind = kinds.by_name[name]
            found.update({(name, path): Entry(inner, source) for path, inner in kind.flatten(value).items()})
    return found


def empty_policy(platform: Platform | None = None, kinds: Kinds | None = None) -> Policy:
    """Before the first look at the store: the config alone."""
    return Policy(-1, kinds=kinds or Kinds(BUILTIN_KINDS), platform=platform or Platform())
