"""The engine `shapes`: it evaluates a subtree once, however often it occurs and in however many clusters. Pure."""

from __future__ import annotations

from functools import lru_cache

from switchyard.match.answer import answer_demand
from switchyard.match.compiled_needs import AmountVector, CompiledNeeds, SearchBudget, SubtreeMemo
from switchyard.match.demand import Demand, Need, NeedKind, walk_needs
from switchyard.match.need_compiler import compile_needs
from switchyard.match.outcome import Match, Misfit
from switchyard.match.tree import Forest, Tree, forest_of
from switchyard.model.graph import Graph

# Compiled needs whose answers for subtrees are cached for the next cluster. The index caches whole verdicts.
COMPILED_MAX = 64
MEMO_MAX = 100_000  # cached subtrees per compiled needs


class ShapesEngine:
    """Exact over the hash-consed graph."""

    def satisfy(self, demand: Demand, graph: Graph) -> Match | Misfit:
        return answer_demand(demand, graph, self)

    def fits(self, demand: Demand, graph: Graph) -> bool:
        """Only yes or no. Most clusters that do not fit lack something in total, which is quickly seen."""
        forest = forest_of(graph)
        totals = forest.root.totals
        if any(totals.get(key, 0) < amount for key, amount in demand.totals.items()):
            return False
        need = demand.needs[0] if len(demand.needs) == 1 else None
        if need and need.kind is NeedKind.SLOT and demand.nodes is None and demand.constraint is None:
            question = self.question(demand.needs, forest, is_capped=False)
            if not question.is_competing and not question.outer_slots:
                return _slots(question, forest) >= need.count
        return isinstance(answer_demand(demand, graph, self, is_explained=False), Match)

    def question(self, needs: tuple[Need, ...], forest: Forest, *, is_capped: bool) -> CompiledNeeds:
        outside = forest.outside & _slot_types(needs)  # only these matter, so most clusters share one compilation
        return _compiled(needs, forest.nested, outside, is_capped)

    def ways(self, question: CompiledNeeds, forest: Forest, budget: SearchBudget) -> list[AmountVector]:
        """The amounts at the top of the cluster."""
        memo = _memo(question)
        root = forest.root
        is_host = root.is_host or not root.has_host
        return _ways(question, root, memo, budget, is_inside=False, is_host=is_host, is_top=not is_host)

    def ways_by_node(
        self, question: CompiledNeeds, forest: Forest, budget: SearchBudget
    ) -> list[tuple[list[AmountVector], int]]:
        """The amounts at the top of each kind of node, with the number of such nodes."""
        memo = _memo(question)
        return [
            (_ways(question, tree, memo, budget, is_inside=True, is_host=True), count) for tree, count in forest.nodes
        ]


def _memo(question: CompiledNeeds) -> SubtreeMemo:
    """Return the cache of subtrees; an empty one for a search, whose bound is per cluster."""
    if len(question.memo) > MEMO_MAX:
        question.memo.clear()
    return {} if question.is_competing else question.memo


def _ways(
    question: CompiledNeeds,
    tree: Tree,
    memo: SubtreeMemo,
    budget: SearchBudget,
    *,
    is_inside: bool,
    is_host: bool,
    is_top: bool = False,
) -> list[AmountVector]:
    is_inside = is_inside or is_host
    ways = [question.zero]
    for child, count in tree.children:
        child_ways = memo.get((child, is_inside))
        if child_ways is None:
            is_child_host = child.is_host and not is_inside
            child_ways = _ways(question, child, memo, budget, is_inside=is_inside, is_host=is_child_host)
            memo[child, is_inside] = child_ways
        ways = question.add(ways, question.times(child_ways, count, budget), budget)
    return question.at(tree, ways, is_inside=is_inside, is_host=is_host, is_top=is_top, budget=budget)


def _slots(question: CompiledNeeds, forest: Forest) -> int:
    """Count slots that lie inside one host each, so only the kinds of host are evaluated."""
    memo, place, slots = _memo(question), question.goal[0][0], 0
    amounts, slot = question.amounts_of_slot, question.takers[-1]
    for tree, count in forest.hosts:
        if amounts:
            if slot.may(tree):
                slots += count * min(tree.totals.get(key, 0) // amount for key, amount in amounts)
            continue
        ways = memo.get((tree, True))
        if ways is None:
            ways = _ways(question, tree, memo, SearchBudget(), is_inside=True, is_host=True)
            memo[tree, True] = ways
        slots += ways[0][place] * count
    return slots


@lru_cache(maxsize=COMPILED_MAX)
def _slot_types(needs: tuple[Need, ...]) -> frozenset[str]:
    """Types that slots hold."""
    slots = [need for need, _ in walk_needs(needs) if need.kind is NeedKind.SLOT]
    return frozenset(held.type for slot in slots for held in slot.holds)


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(
    needs: tuple[Need, ...], nested: frozenset[str], outside: frozenset[str], is_capped: bool
) -> CompiledNeeds:
    return compile_needs(needs, nested=nested, outside=outside, is_capped=is_capped)
