"""From the amounts that an engine adds up to its answer: fits or not, how many times, why not. Pure."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Protocol

from switchyard.match.compiled_needs import UNBOUNDED, AmountVector, CompiledNeeds, SearchBudget, TooComplex
from switchyard.match.demand import Demand, Need, NeedKind, walk_needs
from switchyard.match.graph_cut import allowed_part
from switchyard.match.misfit import cluster_shortage, explain_constraint, explain_misfit, explain_spread
from switchyard.match.outcome import SEARCH_STEPS_MAX, TOO_COMPLEX, Match, Misfit
from switchyard.match.tree import Forest, forest_of
from switchyard.model.graph import Graph

UNEXPLAINED = Misfit("", "")
BEAM_WIDTH = 8  # ways that the first, quick search keeps: a few milliseconds


class CountingEngine(Protocol):
    """What an engine must do: compute the amounts that reach the top of the cluster, or of each node."""

    def question(self, needs: tuple[Need, ...], forest: Forest, *, is_capped: bool) -> CompiledNeeds: ...

    def ways(self, question: CompiledNeeds, forest: Forest, budget: SearchBudget) -> list[AmountVector]: ...

    def ways_by_node(
        self, question: CompiledNeeds, forest: Forest, budget: SearchBudget
    ) -> list[tuple[list[AmountVector], int]]: ...


def answer_demand(demand: Demand, graph: Graph, engine: CountingEngine, *, is_explained: bool = True) -> Match | Misfit:
    """Return whether the cluster could run the demand, and how often. Not explained: a misfit has no reason."""
    if demand.constraint is not None:
        part = allowed_part(graph, demand.constraint)
        if part is None:
            return explain_constraint(demand.constraint, graph)
        graph = part
    if not demand.needs:
        return Match()
    return _MatchRun(demand, forest_of(graph), engine, is_explained).answer()


@dataclass(frozen=True, slots=True)
class _MatchRun:
    demand: Demand
    forest: Forest
    engine: CountingEngine
    is_explained: bool

    def answer(self) -> Match | Misfit:
        needs = self.demand.needs
        if any(need.is_slot_if_absent for need in needs):
            needs = tuple(map(self._as_slot, needs))
        try:
            if self.demand.nodes is not None:
                return self._spread(needs[0], self.demand.nodes)
            if self.demand.is_together or len(needs) == 1:
                return self._together(needs)
            return self._apart(needs)
        except TooComplex:
            return Match(undecided=TOO_COMPLEX)

    def _as_slot(self, need: Need) -> Need:
        if need.is_slot_if_absent and need.type not in self.forest.types:
            return replace(need, kind=NeedKind.SLOT, is_distinct=False, is_slot_if_absent=False)
        return replace(need, is_slot_if_absent=False)

    def _apart(self, needs: tuple[Need, ...]) -> Match | Misfit:
        """Ask for every need alone. The scarcest one decides how often the demand fits."""
        answers = [self._together((need,)) for need in needs]
        known = [answer.slots for answer in answers if answer.slots is not None]
        slots = min(known) if known else None
        for answer in answers:
            if isinstance(answer, Misfit):
                return replace(answer, slots=slots)
        undecided = next((answer.undecided for answer in answers if isinstance(answer, Match) and answer.undecided), "")
        return Match(slots, undecided)

    def _together(self, needs: tuple[Need, ...]) -> Match | Misfit:
        """Ask for all needs at the same time."""
        question = self.engine.question(needs, self.forest, is_capped=False)
        if question.is_competing:
            # If the whole cluster has too little of a type, no search is needed; a search might end undecided.
            is_met = cluster_shortage(needs, self.forest) is None and self._search(
                self.engine.question(needs, self.forest, is_capped=True)
            )
            slots = self._slots(needs) if self.is_explained else None
        else:
            (vector,) = self.engine.ways(question, self.forest, SearchBudget())
            is_met = question.is_reached([vector])
            if len(needs) == 1 and _slot_chain(needs[0]) is None:
                slots = _finite_or_none(vector[question.goal[0][0]] // needs[0].slot_units)
            else:
                slots = self._slots(needs) if self.is_explained else None
        if is_met:
            return Match(slots)
        return replace(self._why(needs), slots=slots) if self.is_explained else UNEXPLAINED

    def _search(self, question: CompiledNeeds) -> bool:
        """Follow a few ways first, which often suffice for a yes; then all ways, within the bounds."""
        with contextlib.suppress(TooComplex):
            is_met, is_certain = self._look(question, beam=BEAM_WIDTH)
            if is_met or is_certain:
                return is_met
        return self._look(question)[0]

    def _look(self, question: CompiledNeeds, *, beam: int | None = None) -> tuple[bool, bool]:
        """Return whether it fits, and whether a no is certain. The steps are charged to the demand in any case."""
        search = self.demand.search
        budget = SearchBudget(max(0, min(SEARCH_STEPS_MAX, search.steps_left)), beam=beam)
        try:
            is_met = question.is_reached(self.engine.ways(question, self.forest, budget))
            return is_met, not budget.was_cut
        finally:
            search.steps_left -= budget.steps

    def _why(self, needs: tuple[Need, ...]) -> Misfit:
        return explain_misfit(needs, self.forest, word=self.demand.unit_word)

    def _slots(self, needs: tuple[Need, ...]) -> int | None:
        """How many slots of one need the empty cluster holds; of several needs, how often all of them."""
        try:
            if len(needs) == 1:
                return self._slots_of(needs[0])
            question = self.engine.question(needs, self.forest, is_capped=False)
            if question.is_competing:
                return None
            (vector,) = self.engine.ways(question, self.forest, SearchBudget())
            return _finite_or_none(min(vector[place] // count for place, count in question.goal))
        except TooComplex:
            return None

    def _slots_of(self, need: Need) -> int | None:
        chain = _slot_chain(need)
        question = self.engine.question((chain or need,), self.forest, is_capped=False)
        place = question.goal[0][0]
        units = max(vector[place] for vector in self.engine.ways(question, self.forest, SearchBudget()))
        return _finite_or_none(units // (1 if chain else need.slot_units))

    def _spread(self, need: Need, nodes: int) -> Match | Misfit:
        """Spread the tasks over exactly `nodes` nodes, at least one task each: the best nodes must hold all tasks."""
        question = self.engine.question((replace(need, count=1),), self.forest, is_capped=False)
        place = question.goal[0][0]
        holds: dict[int, int] = {}  # tasks on a node → how many such nodes
        for ways, count in self.engine.ways_by_node(question, self.forest, SearchBudget()):
            units = max(vector[place] for vector in ways)
            holds[units] = holds.get(units, 0) + count
        best, nodes_left = 0, nodes
        for units, count in sorted(holds.items(), reverse=True):
            taken = min(count, nodes_left) if units else 0
            best, nodes_left = best + units * taken, nodes_left - taken
        slots = _finite_or_none(sum(units * count for units, count in holds.items()))
        if not nodes_left and best >= need.count:
            return Match(slots)
        if not self.is_explained:
            return UNEXPLAINED
        if slots == 0:
            return replace(self._why((replace(need, count=1),)), slots=0)
        return replace(explain_spread(need, nodes, holds, best, word=self.demand.unit_word), slots=slots)


def _slot_chain(need: Need) -> Need | None:
    """The chain of needs down to the only slot, each counted once: `node 4 > slot 1` counts slots, not nodes."""
    if need.is_distinct or need.kind is NeedKind.SLOT:
        return None
    inner = [held for held, _ in walk_needs(need.holds) if held.kind is NeedKind.SLOT]
    if len(inner) != 1:
        return None

    def chain(at: Need) -> Need | None:
        if at is inner[0]:
            return replace(at, count=1, slot_units=1)
        below = next((inner_chain for held in at.holds if (inner_chain := chain(held))), None)
        return replace(at, count=1, slot_units=1, kind=NeedKind.PLACE, holds=(below,)) if below else None

    return chain(need)


def _finite_or_none(slots: int) -> int | None:
    return None if slots >= UNBOUNDED else slots
