"""A cache of the engines' answers: a demand is asked once per class of clusters with equal graphs. Pure.

An answer holds for the whole of a cluster. How a cluster is now (health, load) is never part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from switchyard.match.answer import UNEXPLAINED
from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE, Match, Misfit, engine
from switchyard.match.tree import Forest, forest_of
from switchyard.model.graph import Graph

DEMANDS_MAX = 4096  # cached; beyond that the cache is emptied, and each demand is asked again
VERDICTS_MAX = 1_000_000  # of all of them together: some hundred megabytes


class MatchIndex:
    """Verdicts by engine, demand and class. Threads share it; two may compute the same answer."""

    def __init__(self) -> None:
        self._forests: dict[str, Forest | None] = {}  # of the classes that exist now, by signature
        self._sizes: dict[str, int] = {}  # of their graphs: shapes and edges between them
        self._verdicts: dict[tuple[str, str], dict[str, Match | Misfit]] = {}
        self._verdict_count = 0

    @property
    def classes(self) -> int:
        return len(self._forests)

    def set_classes(self, graphs: Iterable[Graph]) -> None:
        """Tell the index all graphs that exist now. It keeps the trees of these graphs."""
        by_signature = {graph.signature: graph for graph in graphs}
        forests, sizes = self._forests, self._sizes
        self._forests = {signature: forests.get(signature) for signature in by_signature}
        self._sizes = {signature: sizes.get(signature) or _size(graph) for signature, graph in by_signature.items()}

    def unanswered_size(self, demand: Demand, *, by: str = DEFAULT_ENGINE) -> int:
        """Return how many shapes and edges an answer of all classes has to visit; classes with a cached answer: none.

        A visit takes some microseconds.
        """
        verdicts = self._verdicts.get((by, demand.key), {})
        return sum(
            size
            for signature, size in self._sizes.items()
            if (verdict := verdicts.get(signature)) is None or verdict is UNEXPLAINED
        )

    def verdict(self, demand: Demand, graph: Graph, *, by: str = DEFAULT_ENGINE) -> Match | Misfit:
        """Return the answer of the graph's class; of the graph itself, if the demand names hosts or ranks."""
        key = _class_key(demand, graph)
        verdicts = self._verdicts.setdefault((by, demand.key), {})
        verdict = verdicts.get(key)
        if verdict is None or verdict is UNEXPLAINED:
            self._hold_forest(graph)
            verdict = verdicts[key] = engine(by).satisfy(demand, graph)
            self._count_verdict()
        return verdict

    def fits(self, demand: Demand, graphs: Sequence[Graph | None], *, by: str = DEFAULT_ENGINE) -> list[bool]:
        """Whether the verdict of each graph is a match; a cluster without a graph does not fit.

        Faster than `verdict` where it is not: an engine that has a method `fits` need not find the reason.
        """
        answers = {"": False}
        keys = [_class_key(demand, graph) if graph else "" for graph in graphs]
        for key, graph in zip(keys, graphs, strict=True):
            if key not in answers:
                assert graph is not None
                answers[key] = self._fits(demand, graph, key, by)
        return [answers[key] for key in keys]

    def _fits(self, demand: Demand, graph: Graph, key: str, by: str) -> bool:
        verdicts = self._verdicts.setdefault((by, demand.key), {})
        verdict = verdicts.get(key)
        quick = getattr(engine(by), "fits", None)
        if verdict is None and quick is not None:
            self._hold_forest(graph)
            if not quick(demand, graph):
                verdict = verdicts[key] = UNEXPLAINED
                self._count_verdict()
        return isinstance(verdict or self.verdict(demand, graph, by=by), Match)

    def _hold_forest(self, graph: Graph) -> None:
        forests = self._forests
        if graph.signature in forests and forests[graph.signature] is None:
            forests[graph.signature] = forest_of(graph)

    def _count_verdict(self) -> None:
        self._verdict_count += 1
        if self._verdict_count > VERDICTS_MAX or len(self._verdicts) > DEMANDS_MAX:
            self._verdicts, self._verdict_count = {}, 0


def _size(graph: Graph) -> int:
    return len(graph.shapes) + sum(len(shape.children) for shape in graph.shapes)


def _class_key(demand: Demand, graph: Graph) -> str:
    return graph.signature + graph.hosts + graph.ranks if demand.is_by_name else graph.signature
