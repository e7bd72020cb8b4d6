"""Cluster assignment (7): the pool that a job must run in, and the pools that open to it when it waits for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.job.spill import SpillTexts, parse_rules, pools_in_rules
from switchyard.model.rules.names import Name
from switchyard.policy.draft import REQUEST, Draft, Entry, RecordOverrides
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform


class ClusterAssignmentValue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`spill`: what becomes of a job that waits for long, as `after 10m try pool burst` and `reject after 24h`."""

    cluster_pool_name: Name
    spill: SpillTexts | None = None

    def __post_init__(self) -> None:
        parse_rules(self.spill or ())


class ClusterAssignmentKind(Kind):
    number = 7
    name = "cluster-assignment"
    title = "cluster assignment"
    value = ClusterAssignmentValue
    merge = Merge.REPLACE
    sample: ClassVar[dict[str, Any]] = {"cluster_pool_name": "mypool"}

    def check(self, value: Any, platform: Platform) -> list[str]:
        known = ", ".join(sorted(platform.pools)) or "none"
        named = [
            ("cluster_pool_name", value.cluster_pool_name),
            *(("spill", name) for name in pools_in_rules(value.spill or ())),
        ]
        return [
            f"{path}: there is no pool {pool!r}; known: {known}" for path, pool in named if pool not in platform.pools
        ]

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        stored, spill = fields.get("cluster_pool_name"), fields.get("spill")
        return self._spill(self._bind(draft, stored), stored, spill if spill and spill.value else None)

    def _bind(self, draft: Draft, entry: Entry | None) -> Draft:
        pool = draft.bounds.pool
        if entry is None:
            if not pool:
                return draft
            return replace(draft, own={**draft.own, (self.name, "cluster_pool_name"): Entry(pool, REQUEST)})
        if pool is not None and pool != entry.value:
            refusal = f"pool: asks for {pool!r}, and its scope is bound to {entry.value!r} ({entry.source})"
            return replace(draft, refusals=(*draft.refusals, refusal))
        return draft if pool == entry.value else draft.bounded(pool=entry.value)

    def _spill(self, draft: Draft, bound: Entry | None, stored: Entry | None) -> Draft:
        """Use the request's spill rules, else the scope's. In a scope that is bound to a pool, a request may only
        name pools that the rules of the scope open."""
        asked = tuple(draft.request.spill)
        if not asked:
            if stored is None:
                return draft
            return draft.bounded(spill=tuple(stored.value), spill_from=str(stored.source))
        opened = pools_in_rules(stored.value) if stored is not None else ()
        refused = tuple(
            f"spill: would try pool {pool!r}, and its scope is bound to {bound.value!r} ({bound.source})"
            for pool in pools_in_rules(asked)
            if bound is not None and pool not in (bound.value, *opened)
        )
        overrides: RecordOverrides = {(self.name, "spill"): Entry(list(asked), REQUEST)}
        return replace(
            draft.bounded(spill=asked, spill_from="the request"),
            own=draft.own | overrides,
            refusals=(*draft.refusals, *refused),
        )
