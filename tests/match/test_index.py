"""The index says of every cluster what asking it alone would say, whatever has changed in between."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from switchyard.match import index as index_module
from switchyard.match.engine import Match, engine
from switchyard.match.index import MatchIndex
from switchyard.match.plain_demand import demand_of_resources
from switchyard.match.requirement import Requirement
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Resources
from tests.builders import a_demand, a_graph, a_group
from tests.match.strategies import demands, graphs

GRAPHS = [
    *(a_graph(a_group(nodes, cores=cores, gpus=gpus)) for nodes in (1, 4) for cores in (2, 8) for gpus in (0, 2)),
    compile_graph({"nodes": 2, "each": {"core": 8}}, {"io": {"attach": {"node0": [{"type": "shm"}]}}}, where="f"),
]
DEMANDS = [
    a_demand(),
    a_demand(cores=4),
    a_demand(tasks=4, gpus=2),
    a_demand(tasks=3, nodes=3),
    a_demand(cores=99),
    demand_of_resources(Resources(tasks=2), (Requirement("io", "type", match="shm"),)),
]


def one_by_one(graphs: list[Graph], demand) -> list[bool]:
    return [isinstance(engine().satisfy(demand, graph), Match) for graph in graphs]


class Changing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = MatchIndex()
        self.clusters: dict[str, Graph] = {}

    @rule(name=st.sampled_from("abcdefgh"), graph=st.sampled_from(GRAPHS))
    def put(self, name: str, graph: Graph) -> None:
        self.clusters[name] = graph
        self.index.set_classes(self.clusters.values())

    @rule(name=st.sampled_from("abcdefghx"))
    def remove(self, name: str) -> None:
        self.clusters.pop(name, None)
        self.index.set_classes(self.clusters.values())

    @rule(demand=st.sampled_from(DEMANDS))
    def ask_all(self, demand) -> None:
        graphs = list(self.clusters.values())
        assert self.index.fits(demand, [*graphs, None]) == [*one_by_one(graphs, demand), False]

    @rule(demand=st.sampled_from(DEMANDS))
    def ask_for_reasons(self, demand) -> None:
        for graph in self.clusters.values():
            assert self.index.verdict(demand, graph) == engine().satisfy(demand, graph)

    @invariant()
    def counts(self) -> None:
        assert self.index.classes == len({graph.signature for graph in self.clusters.values()})


def test_any_order_of_changes_and_questions() -> None:
    run_state_machine_as_test(Changing, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


def test_any_order_of_changes_and_questions_with_little_room(monkeypatch) -> None:
    """Every bound is met: what was remembered is forgotten, and nothing else changes."""
    for bound, value in {"DEMANDS_MAX": 2, "VERDICTS_MAX": 3}.items():
        monkeypatch.setattr(index_module, bound, value)
    run_state_machine_as_test(Changing, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@settings(max_examples=150, deadline=None)
@given(demands(), st.lists(graphs(), min_size=1, max_size=6))
def test_the_quick_answer_is_the_exact_one(demand, clusters: list[Graph]) -> None:
    index = MatchIndex()
    assert index.fits(demand, clusters) == one_by_one(clusters, demand)
    assert all(index.verdict(demand, graph) == engine().satisfy(demand, graph) for graph in clusters)
    assert all(index.verdict(demand, graph, by="walk") == engine("walk").satisfy(demand, graph) for graph in clusters)


def test_equal_clusters_are_one_class_whatever_their_hosts_are_called() -> None:
    index = MatchIndex()
    graphs = [
        compile_graph({"nodes": 4, "each": {"core": 8}, "hosts": f"c{number}-[0-3]"}, where="f")
        for number in range(100)
    ]
    index.set_classes(graphs)
    assert index.classes == 1
    assert index.fits(a_demand(cores=8), graphs) == [True] * 100
    assert index.fits(a_demand(cores=9), graphs) == [False] * 100


def test_only_classes_without_a_cached_answer_are_work() -> None:
    index, demand = MatchIndex(), a_demand(cores=9)
    small, large = a_graph(cores=8), a_graph(*(a_group(cores=cores) for cores in range(1, 50)))
    index.set_classes([small, large])
    size_of_both = index.unanswered_size(demand)
    assert size_of_both > 2 * len(large.shapes)
    index.verdict(demand, large)
    size_of_small = index.unanswered_size(demand)
    assert 0 < size_of_small < 10
    index.fits(demand, [small])  # says no, but not why
    assert index.unanswered_size(demand) == size_of_small
    index.verdict(demand, small)
    assert index.unanswered_size(demand) == 0
    assert index.unanswered_size(a_demand(cores=10)) == size_of_both
