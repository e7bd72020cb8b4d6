"""Rainbow's dictionary form as a demand: named groups, `replicas`, `count`, `schedule`, `requires`. Pure.

A group with replicas asks for that many distinct vertices of its type, each with what it holds; one without is one slot
of `count` units. A type the graph does not have names a slot. Every group must fit, each on its own; if any
says `schedule: true`, only those count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from switchyard.errors import Malformed
from switchyard.match.canonical_jobspec import ResourceReader
from switchyard.match.demand import Demand, Need, NeedKind
from switchyard.model.jobspec.counts import least_count

GROUPS_MAX = 100


def demand_of_nextgen(form: Mapping[str, Any], *, where: str = "the jobspec") -> Demand:
    """`resources` as a map of groups. None of them: it fits everywhere."""
    resources = form.get("resources")
    if not isinstance(resources, Mapping):
        raise Malformed(f"{where}: resources: expected named groups.")
    if len(resources) > GROUPS_MAX:
        raise Malformed(f"{where}: resources: over {GROUPS_MAX} groups.")
    for name, group in resources.items():
        if not isinstance(group, Mapping):
            raise Malformed(f"{where}: resources.{str(name)[:60]}: expected a resource, not {str(group)[:60]!r}.")
    scheduled = {name: group for name, group in resources.items() if group.get("schedule") is True} or resources
    reading = _NextgenReader(where)
    needs = [reading.group(group, f"resources.{str(name)[:60]}") for name, group in scheduled.items()]
    return Demand(tuple(sorted(set(needs), key=repr)), is_together=False)


class _NextgenReader(ResourceReader):
    """Below a group, replicas are plain counts."""

    def group(self, entry: Mapping[str, Any], place: str) -> Need:
        need = super().need(self._counted(entry), place, 1)
        replicas = entry.get("replicas")
        if need.kind is NeedKind.SLOT:
            return replace(need, count=need.count * self._replicas(replicas, place))
        is_slot = bool(need.holds)  # a bare type that is not there is missing, not a name
        if replicas in (None, 0):
            return replace(need, is_slot_if_absent=is_slot)
        return replace(
            need, count=need.count * self._replicas(replicas, place), is_distinct=True, is_slot_if_absent=is_slot
        )

    def need(self, entry: Any, place: str, depth: int) -> Need:
        if isinstance(entry, Mapping):
            entry = self._counted(entry)
            if entry.get("replicas") not in (None, 0):
                entry = {**entry, "count": self._count(entry, place) * self._replicas(entry["replicas"], place)}
        return super().need(entry, place, depth)

    def _counted(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """A count of zero is how the form says that there is none."""
        return {**entry, "count": 1} if entry.get("count") in (None, 0) else entry

    def _count(self, entry: Mapping[str, Any], place: str) -> int:
        return least_count(entry["count"], place=f"{self.where}: {place}.count")

    def _replicas(self, value: Any, place: str) -> int:
        return 1 if value in (None, 0) else least_count(value, place=f"{self.where}: {place}.replicas")
