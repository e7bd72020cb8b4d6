"""The index says of every cluster what asking it alone would say, whatever has changed in between."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from switchyard.match import index as index_module
from switchyard.match.engine import Match, engine
from switchyard.match.index import MatchIndex
from switchyard.match.plain_demand import demand_of_resources
from switchyard.match.requirement import Requirement
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job import Resources
from switchyard.route.select.weighted_draw import draw, draw_from_groups, hash_text
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


def matching(index: MatchIndex, demand) -> set[str]:
    return {index.ids[int(number)] for _, _, numbers in index.matching(demand).groups for number in numbers}


def one_by_one(clusters: dict[str, Graph], demand) -> set[str]:
    return {name for name, graph in clusters.items() if isinstance(engine().satisfy(demand, graph), Match)}


class Changing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = MatchIndex()
        self.clusters: dict[str, Graph] = {}
        self.weights: dict[str, float] = {}

    @rule(name=st.sampled_from("abcdefgh"), graph=st.sampled_from(GRAPHS), weight=st.sampled_from([0.0, 1.0, 2.0]))
    def put(self, name: str, graph: Graph, weight: float) -> None:
        self.index.put(name, graph, key=hash_text(name), weight=weight)
        self.clusters[name], self.weights[name] = graph, weight

    @rule(name=st.sampled_from("abcdefghx"))
    def remove(self, name: str) -> None:
        self.index.remove(name)
        self.clusters.pop(name, None)

    @rule(demand=st.sampled_from(DEMANDS))
    def ask(self, demand) -> None:
        assert matching(self.index, demand) == one_by_one(self.clusters, demand)

    @precondition(lambda self: self.clusters)
    @rule(demand=st.sampled_from(DEMANDS), seed=st.text(max_size=3))
    def choose(self, demand, seed: str) -> None:
        fitting = sorted(one_by_one(self.clusters, demand))
        number = draw_from_groups(seed, self.index.matching(demand).groups)
        if not fitting:
            assert number is None
            return
        won = fitting[draw(seed, fitting, [self.weights[name] for name in fitting])]
        assert number is not None
        assert self.index.ids[number] == won

    @invariant()
    def counts(self) -> None:
        assert len(self.index) == len(self.clusters)
        assert self.index.classes == len({graph.signature for graph in self.clusters.values()})


def test_any_order_of_changes_and_questions() -> None:
    run_state_machine_as_test(Changing, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


def test_any_order_of_changes_and_questions_with_little_room(monkeypatch) -> None:
    """Every bound is met: what was remembered is forgotten, and nothing else changes."""
    bounds = {"DEMANDS_MAX": 2, "VERDICTS_MAX": 3, "CHANGES_SCANNED_MAX": 1, "EMPTY_CLASSES_MAX": 0}
    for bound, value in (bounds | {"CHANGES_KEPT_MAX": 5}).items():
        monkeypatch.setattr(index_module, bound, value)
    run_state_machine_as_test(Changing, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@settings(max_examples=150, deadline=None)
@given(demands(), st.lists(graphs(), min_size=1, max_size=6))
def test_no_bitset_leaves_out_who_would_fit(demand, found: list[Graph]) -> None:
    index = MatchIndex()
    clusters = {str(number): graph for number, graph in enumerate(found)}
    for name, graph in clusters.items():
        index.put(name, graph, key=hash_text(name))
    assert matching(index, demand) == one_by_one(clusters, demand)
    assert all(index.verdict(demand, graph) == engine().satisfy(demand, graph) for graph in found)
    assert all(index.verdict(demand, graph, by="walk") == engine("walk").satisfy(demand, graph) for graph in found)


def test_equal_clusters_are_one_class_whatever_their_hosts_are_called() -> None:
    index = MatchIndex()
    for number in range(100):
        graph = compile_graph({"nodes": 4, "each": {"core": 8}, "hosts": f"c{number}-[0-3]"}, where="f")
        index.put(str(number), graph, key=number)
    assert index.classes == 1
    assert len(index.matching(a_demand(cores=8))) == 100
    assert len(index.matching(a_demand(cores=9))) == 0
