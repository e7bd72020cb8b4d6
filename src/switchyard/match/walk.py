"""The engine `walk`: depth first over every single vertex, nothing remembered. Short enough to be believed. Pure.

It asks the same question as `shapes` (compiled_needs.py says what happens at one vertex), but goes through the cluster
as it stands: ten thousand equal nodes are ten thousand visits.
"""

from __future__ import annotations

from switchyard.match.answer import answer_demand
from switchyard.match.compiled_needs import AmountVector, CompiledNeeds, SearchBudget, TooComplex
from switchyard.match.demand import Demand, Need
from switchyard.match.need_compiler import compile_needs
from switchyard.match.outcome import Match, Misfit
from switchyard.match.tree import Forest, Tree
from switchyard.model.graph import Graph

VERTICES_MAX = 250_000  # about a second


class WalkEngine:
    """Exact, vertex by vertex."""

    def satisfy(self, demand: Demand, graph: Graph) -> Match | Misfit:
        return answer_demand(demand, graph, self)

    def question(self, needs: tuple[Need, ...], forest: Forest, *, is_capped: bool) -> CompiledNeeds:
        return compile_needs(needs, nested=forest.nested, outside=forest.outside, is_capped=is_capped)

    def ways(self, question: CompiledNeeds, forest: Forest, budget: SearchBudget) -> list[AmountVector]:
        """The amounts at the top of the cluster."""
        if sum(forest.counts) > VERTICES_MAX:
            raise TooComplex
        root = forest.root
        is_host = root.is_host or not root.has_host
        return _visit(question, root, budget, is_inside=False, is_host=is_host, is_top=not is_host)

    def ways_by_node(
        self, question: CompiledNeeds, forest: Forest, budget: SearchBudget
    ) -> list[tuple[list[AmountVector], int]]:
        """The amounts at the top of each node."""
        if sum(forest.counts) > VERTICES_MAX:
            raise TooComplex
        return [
            (_visit(question, tree, budget, is_inside=True, is_host=True), 1)
            for tree, count in forest.nodes
            for _ in range(count)
        ]


def _visit(
    question: CompiledNeeds,
    tree: Tree,
    budget: SearchBudget,
    *,
    is_inside: bool,
    is_host: bool,
    is_top: bool = False,
) -> list[AmountVector]:
    is_inside = is_inside or is_host
    ways = [question.zero]
    for child, count in tree.children:
        for _ in range(count):
            is_child_host = child.is_host and not is_inside
            child_ways = _visit(question, child, budget, is_inside=is_inside, is_host=is_child_host)
            ways = question.add(ways, child_ways, budget)
    return question.at(tree, ways, is_inside=is_inside, is_host=is_host, is_top=is_top, budget=budget)
