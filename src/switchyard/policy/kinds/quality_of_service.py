"""Quality of service (4): how long a job may wait before it is reported late, by tier or by a budget of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from switchyard.model.executions.execution import QualityOfService
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.policy.draft import REQUEST, Draft, Entry
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform


class QualityOfServiceKind(Kind):
    number = 4
    name = "quality-of-service"
    title = "quality of service"
    value = QualityOfService
    merge = Merge.REPLACE
    sample: ClassVar[dict[str, Any]] = {"tier": "HIGH"}

    def check(self, value: Any, platform: Platform) -> list[str]:
        if value.tier is None and value.queueing_budget is None:
            return ["give a tier or a queueing_budget"]
        if value.tier is not None and value.tier not in platform.tiers_s:
            known = ", ".join(sorted(platform.tiers_s)) or "none"
            return [f"tier: the config has no budget for the tier {value.tier}; known: {known}"]
        return []

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        asked = draft.request.quality_of_service
        if asked is not None and (asked.tier or asked.queueing_budget):
            requested = {"tier": asked.tier, "queueing_budget": asked.queueing_budget}
            overrides = {
                (self.name, field): Entry(value, REQUEST) if value else None for field, value in requested.items()
            }
            budget = queueing_budget_s(asked.tier, asked.queueing_budget, draft.platform)
            return replace(draft, own=draft.own | overrides, budget_s=budget)
        if not fields:
            return draft
        budget = queueing_budget_s(fields["tier"].value, fields["queueing_budget"].value, draft.platform)
        return replace(draft, budget_s=budget)


def queueing_budget_s(tier: str | None, budget: str | int | None, platform: Platform) -> int | None:
    """Return the budget that is given, else the tier's. A tier that the config does not have has no budget."""
    if budget is not None:
        return parse_duration_s(budget)
    return platform.tiers_s.get(str(tier)) if tier is not None else None
