"""Needs compiled so that an engine can ask them of any graph, from the leaves up. Pure.

Each different need has a place in a vector of amounts. At a vertex, the vectors of its children are added. Then each
need that may be met here (a consumer) takes the amounts that it holds out of the vector and adds units of itself: a
slot anywhere inside a host, a need of the vertex's type as often as the vertex's size allows. Amounts that no consumer
further up can take are dropped. If only one consumer can take an amount, it takes as much as possible and there is one
vector. If several compete, there is one vector for each way to divide the amounts that no other way beats.

A slot may also lie outside of hosts, if all that it holds can: it is complete at the vertex that holds it, or at the
top. What lies inside a host is dropped for slots at the host's top, so such a slot never mixes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from switchyard.match.demand import NeedKind
from switchyard.match.outcome import SEARCH_STEPS_MAX
from switchyard.match.requirement import Requirement
from switchyard.match.tree import Tree

AmountVector = tuple[int, ...]
SubtreeMemo = dict[tuple[Tree, bool], list[AmountVector]]
UNBOUNDED = 2**80  # a slot that holds nothing fits this often
COMPARED_PER_STEP = 20  # comparing two vectors is this many times cheaper than making one


class TooComplex(Exception):
    """There are more ways than the bound allows. Never raised out of match/."""


class SearchBudget:
    """How many steps a search may still take. With a beam it keeps only so many ways: then a no is not certain."""

    def __init__(self, steps: int = SEARCH_STEPS_MAX, *, beam: int | None = None) -> None:
        self._left = self._all = steps * COMPARED_PER_STEP
        self.beam = beam
        self.was_cut = False

    @property
    def steps(self) -> int:
        """Steps that were spent."""
        return (self._all - self._left) // COMPARED_PER_STEP

    def spend(self, *, made: int = 0, compared: int = 0) -> None:
        self._left -= made * COMPARED_PER_STEP + compared
        if self._left < 0:
            raise TooComplex


@dataclass(frozen=True, slots=True)
class NeedConsumer:
    """One compiled need. For each unit that it adds at `place`, it takes the amounts `takes` out of the vector."""

    place: int
    kind: NeedKind
    type: str
    unit: str
    requires: tuple[Requirement, ...]
    takes: tuple[tuple[int, int], ...]
    is_distinct: bool
    is_alone: bool  # no other need takes the same amounts
    above: frozenset[str]  # types of the vertices that hold it: a slot is complete there
    below: frozenset[str]  # types of the vertices that it holds
    is_outer: bool  # a slot that may lie outside of hosts, too

    def may(self, tree: Tree) -> bool:
        return all(requirement.is_met(tree.attached) for requirement in self.requires)

    def most(self, vector: AmountVector) -> int:
        return min((vector[place] // amount for place, amount in self.takes), default=UNBOUNDED)

    def take(self, vector: AmountVector, units: int) -> AmountVector:
        changed = list(vector)
        for place, amount in self.takes:
            changed[place] -= amount * units
        changed[self.place] += units
        return tuple(changed)

    def room(self, tree: Tree) -> int:
        return min(tree.size, 1) if self.is_distinct else tree.amount(self.unit)


@dataclass(frozen=True)
class CompiledNeeds:
    """`goal`: the amounts that must reach the top. `caps`: amounts beyond which more is of no use."""

    takers: tuple[NeedConsumer, ...]  # inner needs before the needs that hold them
    goal: tuple[tuple[int, int], ...]
    width: int
    nested: frozenset[str]
    caps: AmountVector | None
    is_competing: bool

    @cached_property
    def zero(self) -> AmountVector:
        return (0,) * self.width

    @cached_property
    def by_type(self) -> dict[str, tuple[NeedConsumer, ...]]:
        """The consumers that take a vertex itself, by its type."""
        types = {taker.type for taker in self.takers if taker.kind is NeedKind.VERTEX}
        return {
            kind: tuple(taker for taker in self.takers if taker.kind is NeedKind.VERTEX and taker.type == kind)
            for kind in types
        }

    @cached_property
    def slots(self) -> tuple[NeedConsumer, ...]:
        return tuple(taker for taker in self.takers if taker.kind is NeedKind.SLOT)

    @cached_property
    def outer_slots(self) -> tuple[NeedConsumer, ...]:
        return tuple(slot for slot in self.slots if slot.is_outer)

    @cached_property
    def places(self) -> tuple[NeedConsumer, ...]:
        return tuple(taker for taker in self.takers if taker.kind is NeedKind.PLACE)

    @cached_property
    def amounts_of_slot(self) -> tuple[tuple[tuple[str, str], int], ...] | None:
        """What a single slot holds, if that is only amounts: then a host's totals decide. None: it holds more."""
        *inner, slot = self.takers
        if slot.kind is not NeedKind.SLOT or self.is_competing or slot.is_outer:
            return None
        if any(
            taker.takes or taker.requires or taker.is_distinct or taker.kind is not NeedKind.VERTEX for taker in inner
        ):
            return None
        counts = dict(slot.takes)
        return tuple(((taker.type, taker.unit), counts[taker.place]) for taker in inner)

    @cached_property
    def memo(self) -> SubtreeMemo:
        """Answers for subtrees, for an engine that caches them."""
        return {}

    @cached_property
    def _useless(self) -> dict[tuple[str, bool], tuple[int, ...]]:
        return {}

    def useless_above(self, tree: Tree, *, is_host: bool) -> tuple[int, ...]:
        """Places of amounts that no consumer above this vertex can take."""
        key = (tree.type, is_host)
        useless = self._useless.get(key)
        if useless is None:
            wanted = {place for place, _ in self.goal}
            for taker in self.takers:
                is_past = (
                    is_host if taker.kind is NeedKind.SLOT else taker.type == tree.type and tree.type not in self.nested
                )
                if not is_past:
                    wanted.update(place for place, _ in taker.takes)
                elif taker.is_outer:  # it may still take the host itself
                    wanted.update(place for place, _ in taker.takes if self.takers[place].type == tree.type)
            useless = self._useless[key] = tuple(place for place in range(self.width) if place not in wanted)
        return useless

    def at(
        self,
        tree: Tree,
        below: list[AmountVector],
        *,
        is_inside: bool,
        is_host: bool,
        budget: SearchBudget,
        is_top: bool = False,
    ) -> list[AmountVector]:
        """Return the ways above a vertex, given the ways below it, without those that another way beats.

        `is_inside`: it is a host, or lies inside one. `is_top`: it is the root.
        """
        ways = below
        for slot in self.slots if is_inside else self.outer_slots:
            if (is_host or tree.type in slot.above) and slot.may(tree):
                ways = self._taken(ways, slot, UNBOUNDED, budget)
        takers = [taker for taker in self.by_type.get(tree.type, ()) if taker.may(tree)]
        if len(takers) == 1:
            ways = self._taken(ways, takers[0], takers[0].room(tree), budget)
        elif takers:
            ways = [
                way
                for below_it in ways
                for way in self._shared(below_it, takers, tree, below=below_it, left=tree.size, budget=budget)
            ]
        for place in self.places:
            if place.type == tree.type and place.may(tree):
                ways = self._taken(ways, place, UNBOUNDED, budget)
        if is_host or is_top:
            for slot in self.slots if is_host else self.outer_slots:
                if (is_top or tree.type in slot.below) and slot.may(tree):
                    ways = self._taken(ways, slot, UNBOUNDED, budget)
        useless = self.useless_above(tree, is_host=is_host)
        if useless:
            ways = [_zeroed(vector, useless) for vector in ways]
        return ways if len(ways) == 1 else self.best(ways, budget)

    def _taken(
        self, ways: list[AmountVector], taker: NeedConsumer, room: int, budget: SearchBudget
    ) -> list[AmountVector]:
        after: list[AmountVector] = []
        for vector in ways:
            units_max = min(room, taker.most(vector))
            if self.caps is not None:
                units_max = min(units_max, max(0, self.caps[taker.place] - vector[taker.place]))
            if units_max == 0 or self._is_best_taken(taker):
                after.append(taker.take(vector, units_max) if units_max else vector)
                continue
            budget.spend(made=units_max)
            after += [taker.take(vector, units) for units in range(units_max + 1)]
        return after

    def _is_best_taken(self, taker: NeedConsumer) -> bool:
        """Whether taking as much as possible is best: it costs nothing, or no other need takes the same amounts."""
        return not taker.takes or (taker.is_alone and taker.type not in self.nested)

    def _shared(
        self,
        vector: AmountVector,
        takers: list[NeedConsumer],
        tree: Tree,
        *,
        below: AmountVector,
        left: int,
        budget: SearchBudget,
    ) -> list[AmountVector]:
        """All ways to divide one vertex among several consumers. None may take units added at this vertex."""
        taker, later = takers[0], takers[1:]
        in_one = max(1, taker.room(tree) // max(1, tree.size)) if taker.unit == "B" else 1
        units_max = min(1 if taker.is_distinct else left * in_one, _most_from_below(taker, below, vector))
        if self.caps is not None:
            units_max = min(units_max, max(0, self.caps[taker.place] - vector[taker.place]))
        units_min = units_max if not later and self._is_best_taken(taker) else 0
        budget.spend(made=units_max - units_min + 1)
        shared: list[AmountVector] = []
        for units in range(units_max, units_min - 1, -1):
            after = taker.take(vector, units) if units else vector
            still = left - -(-units // in_one)
            shared += self._shared(after, later, tree, below=below, left=still, budget=budget) if later else [after]
        return shared

    def add(self, ways: list[AmountVector], more: list[AmountVector], budget: SearchBudget) -> list[AmountVector]:
        """Combine each way of `ways` with each way of `more`."""
        if len(ways) == 1 and len(more) == 1:
            total = tuple(map(int.__add__, ways[0], more[0]))
            return [total if self.caps is None else tuple(map(min, total, self.caps))]
        budget.spend(made=len(ways) * len(more))
        return self.best([tuple(map(int.__add__, first, second)) for first in ways for second in more], budget)

    def times(self, ways: list[AmountVector], count: int, budget: SearchBudget) -> list[AmountVector]:
        """The same subtree `count` times."""
        if len(ways) == 1:
            total = tuple(amount * count for amount in ways[0])
            return [total if self.caps is None else tuple(map(min, total, self.caps))]
        total_ways = [self.zero]
        while True:
            if count & 1:
                total_ways = self.add(total_ways, ways, budget)
            count >>= 1
            if not count:
                return total_ways
            ways = self.add(ways, ways, budget)

    def best(self, ways: list[AmountVector], budget: SearchBudget) -> list[AmountVector]:
        """Drop ways that another way equals or beats in every place."""
        if self.caps is not None:
            caps = self.caps
            ways = [tuple(map(min, vector, caps)) for vector in ways]
        front: list[AmountVector] = []
        for vector in sorted(set(ways), reverse=True):
            budget.spend(compared=len(front))
            if not any(all(map(int.__ge__, better, vector)) for better in front):
                front.append(vector)
        if budget.beam is not None and len(front) > budget.beam:
            budget.was_cut = True  # evenly along the front: the amounts that are needed lie between its ends
            front = [front[at * (len(front) - 1) // (budget.beam - 1)] for at in range(budget.beam)]
        return front

    def is_reached(self, ways: list[AmountVector]) -> bool:
        return any(all(vector[place] >= count for place, count in self.goal) for vector in ways)


def _most_from_below(taker: NeedConsumer, below: AmountVector, vector: AmountVector) -> int:
    """How many units the amounts from below allow. Units added at this very vertex do not count: they are not below."""
    return min((min(below[place], vector[place]) // amount for place, amount in taker.takes), default=UNBOUNDED)


def _zeroed(vector: AmountVector, places: tuple[int, ...]) -> AmountVector:
    changed = list(vector)
    for place in places:
        changed[place] = 0
    return tuple(changed)
