"""The clusters that a request may use, in groups that get the same verdict. Pure.

Thousands of clusters are of some hundred kinds. Each kind is evaluated once; its clusters are an array of indexes into
the world's members. A roster depends on the bounds of a request and on the world, not on what the job needs, so one
roster serves jobs of all shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from switchyard.route.member import Member
from switchyard.route.routing_request import ClusterBounds
from switchyard.route.select.weighted_draw import WeightedCandidates, hash_name
from switchyard.route.verdicts import GroupVerdict

ROSTERS_MAX = 256  # of one world; beyond that all are dropped, and each is built again at its next use

MemberIndexes = NDArray[np.int64]
Refuse = Callable[[Member], GroupVerdict | None]
WeightOf = Callable[[Member], float]


@dataclass(frozen=True, eq=False, slots=True)
class EquivalentClusters:
    """Clusters that get the same verdict from every request with these bounds; `example` is one of them."""

    example: Member
    weight: float
    indexes: MemberIndexes


@dataclass(frozen=True, eq=False, slots=True)
class Roster:
    """`groups`: clusters to evaluate. `outside`: clusters that the bounds exclude, by verdict."""

    groups: tuple[EquivalentClusters, ...]
    outside: tuple[tuple[GroupVerdict, MemberIndexes], ...]


class RosterCache:
    """The rosters of one world, built at first use. Two threads may build the same roster; the results are equal."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self._members = members
        self._rosters: dict[tuple[ClusterBounds, bool], Roster] = {}

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(member.id for member in self._members)

    def of(self, bounds: ClusterBounds, refuse: Refuse, weight: WeightOf, *, is_by_name: bool) -> Roster:
        """Return the roster of requests with these bounds, which `refuse` and `weight` follow (checks.py, weights.py).

        `is_by_name`: the demand names nodes, so that clusters with equal graphs may get different verdicts.
        """
        key = (bounds, is_by_name)
        roster = self._rosters.get(key)
        if roster is None:
            if len(self._rosters) >= ROSTERS_MAX:
                self._rosters = {}
            roster = self._rosters[key] = self._build(bounds.hidden, refuse, weight, is_by_name=is_by_name)
        return roster

    def names(self, groups: Iterable[MemberIndexes]) -> tuple[str, ...]:
        """Return the names of all clusters in these groups, sorted."""
        arrays = list(groups)
        return tuple(self._names[arrays[0] if len(arrays) == 1 else np.sort(np.concatenate(arrays))].tolist())

    def name(self, index: int) -> str:
        return self._members[index].name

    def candidates(self, groups: list[EquivalentClusters]) -> WeightedCandidates:
        """Return all clusters of these groups, ready for the draw."""
        if not groups:
            return WeightedCandidates.of((), ())
        indexes = np.concatenate([group.indexes for group in groups])
        weights = np.repeat([group.weight for group in groups], [len(group.indexes) for group in groups])
        order = indexes.argsort()
        indexes = indexes[order]
        return WeightedCandidates.from_arrays(tuple(self._names[indexes].tolist()), weights[order], self._keys[indexes])

    def split_out(self, groups: Iterable[EquivalentClusters], ids: Iterable[str]) -> list[EquivalentClusters]:
        """Return the groups with each of these clusters in a group of its own."""
        alone = np.array([self._index_of[id_] for id_ in ids if id_ in self._index_of], dtype=np.int64)
        split = []
        for group in groups:
            is_alone = np.isin(group.indexes, alone)
            together = group.indexes[~is_alone]
            if len(together):
                split.append(EquivalentClusters(self._members[together[0]], group.weight, together))
            split += [
                EquivalentClusters(self._members[index], group.weight, np.array([index]))
                for index in group.indexes[is_alone]
            ]
        return split

    @cached_property
    def _names(self) -> NDArray[np.object_]:
        return np.array([member.name for member in self._members], dtype=np.object_)

    @cached_property
    def _keys(self) -> NDArray[np.uint64]:
        return np.array([hash_name(member.name) for member in self._members], dtype=np.uint64)

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {member.id: index for index, member in enumerate(self._members)}

    @cached_property
    def _kinds(self) -> list[int]:
        """The number of each member's kind: members of one are equal in all that a check may read (`GroupMember`)."""
        numbers: dict[tuple[object, ...], int] = {}
        return [
            numbers.setdefault(
                (
                    member.graph.signature if member.graph else "",
                    member.graph.images if member.graph else None,
                    member.graph.site if member.graph else None,
                    member.health.value,
                    member.reason,
                    member.is_interruptible,
                    member.backends,
                    member.trouble,
                    member.files_trouble,
                    member.probation,
                    member.left_s,
                ),
                len(numbers),
            )
            for member in self._members
        ]

    def _build(self, hidden: frozenset[str], refuse: Refuse, weight: WeightOf, *, is_by_name: bool) -> Roster:
        inside: dict[tuple[object, ...], list[int]] = {}
        outside: dict[GroupVerdict, list[int]] = {}
        kinds = self._kinds
        for index, member in enumerate(self._members):
            if member.id in hidden:
                continue
            refusal = refuse(member)
            if refusal is not None:
                outside.setdefault(refusal, []).append(index)
                continue
            key: tuple[object, ...] = (kinds[index], weight(member))
            if is_by_name and member.graph:
                key += (member.graph.hosts, member.graph.ranks)
            inside.setdefault(key, []).append(index)
        groups = (
            EquivalentClusters(example := self._members[indexes[0]], weight(example), np.array(indexes, dtype=np.int64))
            for indexes in inside.values()
        )
        refused = ((refusal, np.array(indexes, dtype=np.int64)) for refusal, indexes in outside.items())
        return Roster(tuple(groups), tuple(refused))
