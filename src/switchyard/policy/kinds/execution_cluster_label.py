"""Execution cluster label (3): the label that a job's clusters must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.rules.names import Name
from switchyard.model.rules.scope import Level
from switchyard.policy.draft import REQUEST, Draft, Entry
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform


class ExecutionClusterLabelValue(Struct, frozen=True, forbid_unknown_fields=True):
    value: Name


class ExecutionClusterLabelKind(Kind):
    number = 3
    name = "execution-cluster-label"
    title = "execution cluster label"
    value = ExecutionClusterLabelValue
    merge = Merge.REPLACE
    sample: ClassVar[dict[str, Any]] = {"value": "mycluster"}

    def check(self, value: Any, platform: Platform) -> list[str]:
        if value.value in platform.labels:
            return []
        return [f"value: there is no label {value.value!r}; known: {', '.join(sorted(platform.labels)) or 'none'}"]

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        label = draft.bounds.label
        if label is not None:
            return replace(draft, own={**draft.own, (self.name, "value"): Entry(label, REQUEST)})
        entry = fields.get("value")
        if entry is not None and entry.source.level is Level.PLATFORM and draft.bounds.pool is not None:
            return replace(
                draft, own={**draft.own, (self.name, "value"): None}
            )  # the default is for jobs without a pool
        return draft if entry is None else draft.bounded(label=entry.value)
