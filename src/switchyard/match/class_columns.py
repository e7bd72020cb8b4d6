"""What each class of clusters has at most, in columns; a question to a column is a bitset over classes. Pure.

Every bitset here is a necessary condition: a class outside of it cannot fit, one inside may.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from switchyard.match.demand import Demand, Need, NeedKind
from switchyard.match.requirement import Requirement
from switchyard.match.tree import Forest
from switchyard.model.graph import AttachedVertex

INITIAL_CAPACITY = 16
# Totals are kept as floats, since they may pass 2^63; a hair less is asked for, so that rounding excludes nobody.
SLACK = 1 - 1e-9

ColumnKey = tuple[str, str, str]  # "total" or "node", type, unit


class ClassColumns:
    """One row per class, in the order they came."""

    def __init__(self) -> None:
        self.rows = 0
        self._amounts: dict[ColumnKey, NDArray[np.float64]] = {}
        self._attached: dict[bytes, int] = {}  # one attached vertex → the classes that have it, as a bitset
        self._vertices: list[tuple[AttachedVertex, bytes]] = []
        self._meeting: dict[Requirement, tuple[int, list[bytes]]] = {}

    def add(self, forest: Forest) -> None:
        row = self.rows
        for (kind, unit), amount in forest.root.totals.items():
            self._set(("total", kind, unit), row, amount)
        for node, _ in forest.nodes:
            for (kind, unit), amount in node.totals.items():
                self._set(("node", kind, unit), row, amount)
        for tree in forest.trees:
            for attached in tree.attached:
                self._mark(attached, row)
        self.rows += 1

    def able(self, demand: Demand, first: int, last: int) -> int:
        """Classes from `first` to before `last` that have the least of what is needed."""
        found = ((1 << last) - 1) & ~((1 << first) - 1)
        for column, amount in _minimum_amounts(demand):
            found &= self._at_least(column, amount)
            if not found:
                return 0
        for requirement in _required(demand.needs):
            found &= self._with(requirement)
        return found

    def _set(self, column: ColumnKey, row: int, amount: int) -> None:
        amounts = self._amounts.get(column)
        if amounts is None:
            amounts = self._amounts[column] = np.zeros(max(INITIAL_CAPACITY, row + 1))
        elif row >= len(amounts):
            grown = np.zeros(2 * (row + 1))
            grown[: len(amounts)] = amounts
            amounts = self._amounts[column] = grown
        amounts[row] = max(amounts[row], float(amount))

    def _at_least(self, column: ColumnKey, amount: int) -> int:
        amounts = self._amounts.get(column)
        if amounts is None:
            return 0 if amount else -1
        mask = amounts[: self.rows] >= amount * SLACK
        return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")

    def _mark(self, attached: AttachedVertex, row: int) -> None:
        key = msgspec.json.encode(attached, order="deterministic")
        if key not in self._attached:
            self._attached[key] = 0
            self._vertices.append((attached, key))
        self._attached[key] |= 1 << row

    def _with(self, requirement: Requirement) -> int:
        """Classes with an attached vertex that meets it. Vertices seen before are not asked again."""
        asked, meeting = self._meeting.get(requirement, (0, []))
        if asked < len(self._vertices):
            meeting = meeting + [key for vertex, key in self._vertices[asked:] if requirement.is_met([vertex])]
            self._meeting[requirement] = (len(self._vertices), meeting)
        found = 0
        for key in meeting:
            found |= self._attached[key]
        return found


def _minimum_amounts(demand: Demand) -> Iterator[tuple[ColumnKey, int]]:
    """What must be there: in all, and on one node for what a slot holds."""
    for (kind, unit), amount in demand.totals.items():
        yield ("total", kind, unit), amount
    for need in demand.needs:
        yield from _least_on_node(need)


def _least_on_node(need: Need) -> Iterator[tuple[ColumnKey, int]]:
    is_on_node = need.kind is NeedKind.SLOT or need.type == "node"
    for held in need.holds:
        if is_on_node and held.kind is NeedKind.VERTEX:
            yield ("node", held.type, held.unit), held.count
        yield from _least_on_node(held)


def _required(needs: tuple[Need, ...]) -> Iterator[Requirement]:
    for need in needs:
        yield from need.requires
        yield from _required(need.holds)
