"""The engine `shapes`: a subtree is asked once, however often it occurs and in however many clusters. Pure."""

from __future__ import annotations

from functools import lru_cache

from switchyard.match.answer import answer_demand
from switchyard.match.compiled_needs import AmountVector, CompiledNeeds, SearchBudget, SubtreeMemo, compile_needs
from switchyard.match.demand import Demand, Need, NeedKind
from switchyard.match.outcome import Match, Misfit
from switchyard.match.tree import Forest, Tree, forest_of
from switchyard.model.graph import Graph

# Questions whose partial answers are kept for the next cluster; whole verdicts are kept by the index.
COMPILED_MAX = 64
MEMO_MAX = 100_000  # subtrees remembered of one question


class ShapesEngine:
    """Exact over the hash-consed graph."""

    def satisfy(self, demand: Demand, graph: Graph) -> Match | Misfit:
        return answer_demand(demand, graph, self)

    def fits(self, demand: Demand, graph: Graph) -> bool:
        """Only yes or no, which is what many clusters are asked first."""
        need = demand.needs[0] if len(demand.needs) == 1 else None
        if need and need.kind is NeedKind.SLOT and demand.nodes is None and demand.constraint is None:
            forest = forest_of(graph)
            question = self.question(demand.needs, forest, is_capped=False)
            if not question.is_competing:
                return _slots(question, forest) >= need.count
        return isinstance(answer_demand(demand, graph, self, is_explained=False), Match)

    def question(self, needs: tuple[Need, ...], forest: Forest, *, is_capped: bool) -> CompiledNeeds:
        return _compiled(needs, forest.nested, is_capped)

    def ways(self, question: CompiledNeeds, forest: Forest, budget: SearchBudget) -> list[AmountVector]:
        """What floats up to the top of the cluster."""
        memo = _memo(question)
        root = forest.root
        return _ways(question, root, memo, budget, is_inside=False, is_node=not root.has_node or root.is_node)

    def ways_by_node(
        self, question: CompiledNeeds, forest: Forest, budget: SearchBudget
    ) -> list[tuple[list[AmountVector], int]]:
        """What floats up to the top of each kind of node, and how many there are of the kind."""
        memo = _memo(question)
        return [
            (_ways(question, tree, memo, budget, is_inside=True, is_node=True), count) for tree, count in forest.nodes
        ]


def _memo(question: CompiledNeeds) -> SubtreeMemo:
    """A search has a bound per cluster, so what it found before must not count."""
    if len(question.memo) > MEMO_MAX:
        question.memo.clear()
    return {} if question.is_competing else question.memo


def _ways(
    question: CompiledNeeds, tree: Tree, memo: SubtreeMemo, budget: SearchBudget, *, is_inside: bool, is_node: bool
) -> list[AmountVector]:
    is_inside = is_inside or is_node
    ways = [question.zero]
    for child, count in tree.children:
        found = memo.get((child, is_inside))
        if found is None:
            found = _ways(question, child, memo, budget, is_inside=is_inside, is_node=child.is_node)
            memo[child, is_inside] = found
        ways = question.add(ways, question.times(found, count, budget), budget)
    return question.at(tree, ways, is_inside=is_inside, is_node=is_node, budget=budget)


def _slots(question: CompiledNeeds, forest: Forest) -> int:
    """A slot lies inside a node, so that the kinds of node are all there is to look at."""
    memo, place, found = _memo(question), question.goal[0][0], 0
    amounts, slot = question.amounts_of_slot, question.takers[-1]
    for tree, count in forest.nodes:
        if amounts:
            if slot.may(tree):
                found += count * min(tree.totals.get(key, 0) // amount for key, amount in amounts)
            continue
        ways = memo.get((tree, True))
        if ways is None:
            ways = _ways(question, tree, memo, SearchBudget(), is_inside=True, is_node=True)
            memo[tree, True] = ways
        found += ways[0][place] * count
    return found


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(needs: tuple[Need, ...], nested: frozenset[str], is_capped: bool) -> CompiledNeeds:
    return compile_needs(needs, nested=nested, is_capped=is_capped)
