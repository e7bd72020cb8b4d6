"""Execution queue (2): the tags that select a job's queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.model.rules.names import Name
from switchyard.policy.draft import REQUEST, Draft, Entry
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform


class ExecutionQueueValue(Struct, frozen=True, forbid_unknown_fields=True):
    tags: Annotated[list[Name], Meta(min_length=1, max_length=100)]


class ExecutionQueueKind(Kind):
    number = 2
    name = "execution-queue-attribute"
    title = "execution queue"
    value = ExecutionQueueValue
    merge = Merge.REPLACE
    sample: ClassVar[dict[str, Any]] = {"tags": ["default"]}

    def check(self, value: Any, platform: Platform) -> list[str]:
        known = ", ".join(sorted(platform.tags)) or "none"
        return [f"tags: no queue has the tag {tag!r}; known: {known}" for tag in value.tags if tag not in platform.tags]

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        if draft.bounds.tags:  # the request's own
            return replace(draft, own={**draft.own, (self.name, "tags"): Entry(list(draft.bounds.tags), REQUEST)})
        return draft.bounded(tags=tuple(fields["tags"].value)) if fields else draft
