"""The index over many clusters: equal clusters are one class, a question is asked once per class and remembered. Pure.

What a demand needs at the very least (totals, the best node, what is attached somewhere) is a bitset over classes each;
only classes in all of them are asked exactly. A cluster that changes moves from one class to another, which costs the
same however many demands are remembered. How a cluster is now (health, load) is never in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from switchyard.match.class_columns import ClassColumns
from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE, Match, Misfit, engine
from switchyard.match.tree import Forest, forest_of
from switchyard.model.graph import Graph

DEMANDS_MAX = 4096  # remembered; beyond that all are forgotten, which costs each its first answer again
VERDICTS_MAX = 1_000_000  # of all of them together: some hundred megabytes
CHANGES_SCANNED_MAX = 4096  # looked through to see whether a remembered set still holds; beyond that it is made again
CHANGES_KEPT_MAX = 1_000_000  # changes kept in all
EMPTY_CLASSES_MAX = 1000  # classes without clusters, before they are swept out
INITIAL_CAPACITY = 4

ClusterNumbers = NDArray[np.int64]
DrawKeys = NDArray[np.uint64]


@dataclass(slots=True)
class ClusterClass:
    """Clusters that answer every question alike: a signature, and its members as an array that grows."""

    signature: str
    graph: Graph
    forest: Forest | None = None  # held from the first question on, so that its subtrees stay shared
    members: ClusterNumbers = field(default_factory=lambda: np.empty(INITIAL_CAPACITY, dtype=np.int64))
    size: int = 0

    def add(self, number: int) -> int:
        if self.size == len(self.members):
            self.members = np.concatenate([self.members, np.empty_like(self.members)])
        self.members[self.size] = number
        self.size += 1
        return self.size - 1


@dataclass(frozen=True, slots=True)
class FittingClusters:
    """Clusters that fit, by weight: (weight, keys of the draw, numbers of the clusters)."""

    groups: tuple[tuple[float, DrawKeys, ClusterNumbers], ...]

    def __len__(self) -> int:
        return sum(len(numbers) for _, _, numbers in self.groups)


@dataclass(frozen=True, slots=True)
class _KnownFits:
    """What is remembered of one demand: how many classes were asked, and those of them that fit."""

    asked: int = 0
    fitting: tuple[int, ...] = ()
    bits: int = 0


@dataclass(slots=True)
class _ClassTable:
    """The classes by number, and all that is remembered by that number: swapped as a whole when numbers change."""

    classes: list[ClusterClass] = field(default_factory=list)
    by_signature: dict[str, int] = field(default_factory=dict)
    columns: ClassColumns = field(default_factory=ClassColumns)
    empty: int = 0  # classes without clusters
    changes: list[int] = field(default_factory=list)  # classes whose members changed, in order
    known: dict[tuple[str, str], _KnownFits] = field(default_factory=dict)
    sets: dict[tuple[str, str], tuple[int, FittingClusters]] = field(default_factory=dict)  # as of which change


class MatchIndex:
    """All clusters by number, their classes, and what was asked of them.

    One writer at a time; readers may be other threads. What they share is only ever replaced or added to.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._keys: DrawKeys = np.empty(INITIAL_CAPACITY, dtype=np.uint64)
        self._weights: NDArray[np.float64] = np.empty(INITIAL_CAPACITY)
        self._class_of: list[int] = []
        self._position: list[int] = []
        self._unused: list[int] = []
        self._layout = _ClassTable()
        self._verdicts: dict[tuple[str, str], dict[str, Match | Misfit]] = {}
        self._verdict_count = 0

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def classes(self) -> int:
        return len(self._layout.classes) - self._layout.empty

    def put(self, cluster: str, graph: Graph, *, key: int, weight: float = 1.0) -> None:
        """A cluster is new, or what it has has changed. `key` is what the draw knows it by."""
        kind = self._layout.by_signature.get(graph.signature)
        if kind is None:
            kind = self._new_class(graph)
        number = self._numbers.get(cluster)
        if number is None:
            number = self._new_number(cluster)
        elif self._class_of[number] == kind and self._keys[number] == key and self._weights[number] == weight:
            return
        else:
            self._leave(number)
        self._keys[number] = key
        self._weights[number] = weight
        self._class_of[number] = kind
        group = self._layout.classes[kind]
        self._layout.empty -= group.size == 0
        self._position[number] = group.add(number)
        self._changed(kind)

    def remove(self, cluster: str) -> None:
        number = self._numbers.pop(cluster, None)
        if number is not None:
            self._leave(number)
            self.ids[number] = ""
            self._unused.append(number)

    def verdict(self, demand: Demand, graph: Graph, *, by: str = DEFAULT_ENGINE) -> Match | Misfit:
        """The answer of one cluster: that of its class, unless the demand names hosts or ranks."""
        key = graph.signature + graph.hosts + graph.ranks if demand.is_by_name else graph.signature
        kept = self._verdicts.setdefault((by, demand.key), {})
        found = kept.get(key)
        if found is None:
            self._hold_forest(graph)
            found = kept[key] = engine(by).satisfy(demand, graph)
            self._verdict_count += 1
            if self._verdict_count > VERDICTS_MAX or len(self._verdicts) > DEMANDS_MAX:
                self._verdicts, self._verdict_count = {}, 0
        return found

    def _hold_forest(self, graph: Graph) -> None:
        """So that the next question finds its trees made."""
        layout = self._layout
        kind = layout.by_signature.get(graph.signature)
        if kind is not None and layout.classes[kind].forest is None:
            layout.classes[kind].forest = forest_of(graph)

    def matching(self, demand: Demand, *, by: str = DEFAULT_ENGINE) -> FittingClusters:
        """All clusters that fit, ready for the draw."""
        assert not demand.is_by_name, "hosts and ranks are a cluster's own: ask each for its verdict"
        layout, key = self._layout, (by, demand.key)
        known = layout.known.get(key, NO_KNOWN_FITS)
        if known.asked < len(layout.classes):
            known = self._ask(layout, known, demand, by)
        as_of, found = layout.sets.get(key, (-1, NO_CLUSTERS))
        now = len(layout.changes)
        if as_of != now and (as_of < 0 or not _is_set_current(known, layout.changes, as_of, now)):
            members = [layout.classes[kind].members[: layout.classes[kind].size] for kind in known.fitting]
            found = self._gather(np.concatenate(members)) if members else NO_CLUSTERS
        if as_of != now:
            layout.sets[key] = (now, found)
        return found

    def asked_of(self, demand: Demand) -> int:
        """How many classes the bitsets leave, which are then asked exactly."""
        layout = self._layout
        _add_missing_columns(layout)
        return layout.columns.able(demand, 0, len(layout.classes)).bit_count()

    def _ask(self, layout: _ClassTable, known: _KnownFits, demand: Demand, by: str) -> _KnownFits:
        """Classes that have come since: by bitsets first, then exactly."""
        fits = _fits(by)
        _add_missing_columns(layout)
        count = layout.columns.rows
        able = layout.columns.able(demand, known.asked, count)
        more = tuple(kind for kind in set_bits(able) if fits(demand, layout.classes[kind].graph))
        if len(layout.known) >= DEMANDS_MAX:
            layout.known, layout.sets = {}, {}
        bits = known.bits | sum(1 << kind for kind in more)
        found = layout.known[by, demand.key] = _KnownFits(count, known.fitting + more, bits)
        layout.sets.pop((by, demand.key), None)
        return found

    def _gather(self, numbers: ClusterNumbers) -> FittingClusters:
        weights = self._weights[numbers]
        groups = []
        for weight in np.unique(weights):
            chosen = numbers[weights == weight]
            groups.append((float(weight), self._keys[chosen], chosen))
        return FittingClusters(tuple(groups))

    def _new_class(self, graph: Graph) -> int:
        if self._layout.empty > EMPTY_CLASSES_MAX and self._layout.empty * 2 > len(self._layout.classes):
            self._sweep()
        layout = self._layout
        kind = len(layout.classes)
        layout.classes.append(ClusterClass(graph.signature, graph))
        layout.by_signature[graph.signature] = kind
        layout.empty += 1
        return kind

    def _new_number(self, cluster: str) -> int:
        if self._unused:
            number = self._unused.pop()
            self.ids[number] = cluster
        else:
            number = len(self.ids)
            self.ids.append(cluster)
            self._class_of.append(-1)
            self._position.append(-1)
            if number == len(self._keys):
                self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
                self._weights = np.concatenate([self._weights, np.empty_like(self._weights)])
        self._numbers[cluster] = number
        return number

    def _leave(self, number: int) -> None:
        """Out of its class: the last member takes its place."""
        kind = self._class_of[number]
        group = self._layout.classes[kind]
        last = int(group.members[group.size - 1])
        group.members[self._position[number]] = last
        self._position[last] = self._position[number]
        group.size -= 1
        self._layout.empty += group.size == 0
        self._changed(kind)

    def _changed(self, kind: int) -> None:
        layout = self._layout
        if len(layout.changes) >= CHANGES_KEPT_MAX:
            layout.sets, layout.changes = {}, []
        layout.changes.append(kind)

    def _sweep(self) -> None:
        """Without the empty classes: the others get new numbers, so what was remembered by number goes."""
        layout = _ClassTable([group for group in self._layout.classes if group.size])
        for kind, group in enumerate(layout.classes):
            layout.by_signature[group.signature] = kind
            for member in group.members[: group.size]:
                self._class_of[int(member)] = kind
        self._layout = layout


NO_KNOWN_FITS = _KnownFits()
NO_CLUSTERS = FittingClusters(())


def _add_missing_columns(layout: _ClassTable) -> None:
    for new in layout.classes[layout.columns.rows :]:
        new.forest = forest_of(new.graph)
        layout.columns.add(new.forest)


def _is_set_current(known: _KnownFits, changes: list[int], as_of: int, now: int) -> bool:
    """Whether nothing that fits has changed since the set was made."""
    return now - as_of <= CHANGES_SCANNED_MAX and not any(known.bits >> kind & 1 for kind in changes[as_of:now])


def _fits(by: str) -> Callable[[Demand, Graph], bool]:
    """Yes or no alone, where an engine can say it faster than with a reason."""
    answering = engine(by)
    quick: Callable[[Demand, Graph], bool] | None = getattr(answering, "fits", None)
    return quick or (lambda demand, graph: isinstance(answering.satisfy(demand, graph), Match))


def set_bits(bits: int) -> Iterator[int]:
    """The places of the ones."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
