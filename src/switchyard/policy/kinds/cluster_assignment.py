"""Cluster assignment (7): the pool that bounds where a job may go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.names import Name
from switchyard.policy.draft import REQUEST, Draft, Entry, Own
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform


class ClusterAssignmentValue(Struct, frozen=True, forbid_unknown_fields=True):
    cluster_pool_name: Name


class ClusterAssignment(Kind):
    number = 7
    name = "cluster-assignment"
    title = "cluster assignment"
    value = ClusterAssignmentValue
    merge = Merge.REPLACE
    sample: ClassVar[dict[str, Any]] = {"cluster_pool_name": "mypool"}

    def check(self, value: Any, platform: Platform) -> list[str]:
        pool = value.cluster_pool_name
        if pool in platform.pools:
            return []
        return [f"cluster_pool_name: there is no pool {pool!r}; known: {', '.join(sorted(platform.pools)) or 'none'}"]

    def amend(self, draft: Draft, found: Mapping[str, Entry]) -> Draft:
        entry = found.get("cluster_pool_name")
        if entry is None:
            own: Own = {(self.name, "cluster_pool_name"): Entry(draft.pool, REQUEST)} if draft.pool else {}
            return replace(draft, own=draft.own | own)
        if draft.pool is not None and draft.pool != entry.value:
            said = f"pool: asks for {draft.pool!r}, and its scope is bound to {entry.value!r} ({entry.source})"
            return replace(draft, refusals=(*draft.refusals, said))
        return replace(draft, pool=entry.value)
