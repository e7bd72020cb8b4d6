"""Who may run what an ask bounds, in groups of clusters that are told the same. Pure.

Thousands of clusters are of some hundred kinds: each kind is judged once, and its members are an array of places among
the world's members. A roster hangs on the bounds of an ask and on the world, not on what a job needs, so it is made
once for all shapes of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from switchyard.route.select.weighted_draw import WeightedCandidates, hash_text
from switchyard.route.verdicts import GroupVerdict

if TYPE_CHECKING:
    from switchyard.route.narrow import RoutingBounds
    from switchyard.route.world import Member

ROSTERS_MAX = 256  # rosters of one world; beyond that all are forgotten, which costs each a walk through its members

MemberIndexes = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class EquivalentClusters:
    """Clusters that every job of these bounds finds alike, by their places; `like` is one of them."""

    like: Member
    weight: float
    places: MemberIndexes


@dataclass(frozen=True, eq=False, slots=True)
class Roster:
    """`groups`: who may, to be judged; `outside`: who may not, each with its reason."""

    groups: tuple[EquivalentClusters, ...]
    outside: tuple[tuple[GroupVerdict, MemberIndexes], ...]


class RosterCache:
    """What is worked out once for one world, at first need. Threads may do it twice, to the same end."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self._members = members
        self._kept: dict[tuple[object, ...], Roster] = {}

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(member.id for member in self._members)

    def of(self, bound: RoutingBounds) -> Roster:
        ask = bound.ask
        is_by_name = ask.demand.is_by_name  # then clusters of one kind may answer differently
        key = (ask.pool, ask.spilled, ask.label, ask.named, ask.settled, ask.granted, ask.hidden, is_by_name)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= ROSTERS_MAX:
                self._kept = {}
            found = self._kept[key] = self._make(bound, is_by_name=is_by_name)
        return found

    def names(self, places: Iterable[MemberIndexes]) -> tuple[str, ...]:
        """Of some groups together, in their order among the members: by name."""
        each = list(places)
        return tuple(self._names[each[0] if len(each) == 1 else np.sort(np.concatenate(each))].tolist())

    def name(self, place: int) -> str:
        return self._members[place].name

    def field(self, groups: list[EquivalentClusters]) -> WeightedCandidates:
        """To draw from."""
        if not groups:
            return WeightedCandidates.of((), ())
        places = np.concatenate([group.places for group in groups])
        weights = np.repeat([group.weight for group in groups], [len(group.places) for group in groups])
        order = places.argsort()
        places = places[order]
        return WeightedCandidates.made(tuple(self._names[places].tolist()), weights[order], self._keys[places])

    def without(self, groups: Iterable[EquivalentClusters], ids: Iterable[str]) -> list[EquivalentClusters]:
        """The groups with these clusters in groups of their own."""
        alone = np.array([self._place_of[each] for each in ids if each in self._place_of], dtype=np.int64)
        found = []
        for group in groups:
            is_alone = np.isin(group.places, alone)
            rest = group.places[~is_alone]
            if len(rest):
                found.append(EquivalentClusters(self._members[rest[0]], group.weight, rest))
            found += [
                EquivalentClusters(self._members[place], group.weight, np.array([place]))
                for place in group.places[is_alone]
            ]
        return found

    @cached_property
    def _names(self) -> NDArray[np.object_]:
        return np.array([member.name for member in self._members], dtype=np.object_)

    @cached_property
    def _keys(self) -> NDArray[np.uint64]:
        return np.array([hash_text(member.name) for member in self._members], dtype=np.uint64)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {member.id: place for place, member in enumerate(self._members)}

    @cached_property
    def _kinds(self) -> list[int]:
        """Of each member, the number of its kind: all that a judge looks at."""
        numbers: dict[tuple[object, ...], int] = {}
        return [
            numbers.setdefault(
                (
                    member.graph.signature if member.graph else "",
                    member.health.value,
                    member.reason,
                    member.is_interruptible,
                    member.backends,
                ),
                len(numbers),
            )
            for member in self._members
        ]

    def _make(self, bound: RoutingBounds, *, is_by_name: bool) -> Roster:
        inside: dict[tuple[object, ...], list[int]] = {}
        outside: dict[GroupVerdict, list[int]] = {}
        hidden, kinds = bound.ask.hidden, self._kinds
        for place, member in enumerate(self._members):
            if member.id in hidden:
                continue
            refused = bound.refuse(member)
            if refused is not None:
                outside.setdefault(refused, []).append(place)
                continue
            key: tuple[object, ...] = (kinds[place], bound.weight(member))
            if is_by_name and member.graph:
                key += (member.graph.hosts, member.graph.ranks)
            inside.setdefault(key, []).append(place)
        groups = (
            EquivalentClusters(
                self._members[places[0]], bound.weight(self._members[places[0]]), np.array(places, dtype=np.int64)
            )
            for places in inside.values()
        )
        return Roster(tuple(groups), tuple((told, np.array(each, dtype=np.int64)) for told, each in outside.items()))
