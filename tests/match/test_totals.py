"""Matching is exact: compared with a placement of every task, node by node, on small clusters."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.match.demand import Demand, demand_of
from switchyard.match.totals import Match, Misfit, match
from switchyard.model.graph import Graph, NodeGroup
from switchyard.model.job import Resources
from tests.builders import GIB, a_graph, a_group

GROUPS = st.lists(
    st.builds(
        NodeGroup,
        count=st.integers(1, 3),
        cores=st.integers(1, 4),
        gpus=st.integers(0, 2),
        memory_bytes=st.integers(0, 4),
        storage_bytes=st.integers(0, 2),
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    tasks = draw(st.integers(1, 8))
    return Demand(
        tasks=tasks,
        nodes=draw(st.none() | st.integers(1, min(tasks, 5))),
        cores=draw(st.integers(1, 3)),
        gpus=draw(st.integers(0, 2)),
        memory_bytes=draw(st.integers(0, 3)),
        storage_bytes=draw(st.integers(0, 1)),
    )


def holds(node: NodeGroup, demand: Demand, tasks: int) -> bool:
    """Put the tasks on an empty node one by one."""
    left = [node.cores, node.gpus, node.memory_bytes, node.storage_bytes]
    for _ in range(tasks):
        left = [
            has - asks
            for has, asks in zip(
                left, (demand.cores, demand.gpus, demand.memory_bytes, demand.storage_bytes), strict=True
            )
        ]
    return min(left) >= 0


def fits_by_trying(demand: Demand, graph: Graph) -> bool:
    nodes = [group for group in graph.groups for _ in range(group.count)]
    if demand.nodes is None:
        return _spread(nodes, demand, demand.tasks)
    share, extra = divmod(demand.tasks, demand.nodes)
    loads = [share + (index < extra) for index in range(demand.nodes)]
    return any(
        all(holds(node, demand, load) for node, load in zip(chosen, order, strict=True))
        for chosen in combinations(nodes, demand.nodes)
        for order in set(permutations(loads))
    )


def _spread(nodes: list[NodeGroup], demand: Demand, tasks: int) -> bool:
    """Any number of tasks on the first node, the rest on the others."""
    if tasks == 0:
        return True
    if not nodes:
        return False
    return any(
        holds(nodes[0], demand, here) and _spread(nodes[1:], demand, tasks - here) for here in range(tasks, -1, -1)
    )


@given(demands(), GROUPS)
def test_the_answer_is_that_of_trying_every_placement(demand: Demand, groups: list[NodeGroup]) -> None:
    graph = Graph(groups)
    found = match(demand, graph)
    assert isinstance(found, Match) == fits_by_trying(demand, graph)
    if isinstance(found, Match):
        nodes = [group for group in groups for _ in range(group.count)]
        assert _spread(nodes, demand, found.tasks)
        assert not _spread(nodes, demand, found.tasks + 1)


@given(demands(), GROUPS, st.randoms())
def test_the_order_and_the_cutting_of_groups_change_nothing(demand: Demand, groups: list[NodeGroup], chance) -> None:
    single = [
        NodeGroup(1, group.cores, group.gpus, group.memory_bytes, group.storage_bytes)
        for group in groups
        for _ in range(group.count)
    ]
    chance.shuffle(single)
    one, other = match(demand, Graph(groups)), match(demand, Graph(single))
    assert isinstance(one, Match) == isinstance(other, Match)
    if isinstance(one, Match):
        assert one == other


MISFITS = [
    (Demand(cores=5), "asks 5 cores per task, largest node has 4"),
    (Demand(gpus=1), "asks 1 gpus per task, largest node has 0"),
    (Demand(memory_bytes=9 * GIB), "asks 9GiB memory per task, largest node has 8GiB"),
    (Demand(storage_bytes=GIB), "asks 1GiB ephemeral storage per task, largest node has 0B"),
    (Demand(tasks=9), "asks 9 tasks, holds 8 of them at once on 2 nodes"),
    (Demand(tasks=3, nodes=3), "asks 3 nodes with 1 tasks each, has 2 nodes"),
    (Demand(tasks=10, nodes=2), "asks 2 nodes with 5 tasks each, has 0 nodes"),
]


@pytest.mark.parametrize(("demand", "says"), MISFITS)
def test_a_misfit_names_what_is_short(demand: Demand, says: str) -> None:
    found = match(demand, a_graph(count=2))
    assert isinstance(found, Misfit)
    assert says in found.reason


def test_everything_that_is_short_is_named() -> None:
    found = match(Demand(cores=5, gpus=2, memory_bytes=GIB * 99), a_graph())
    assert isinstance(found, Misfit)
    assert all(word in found.reason for word in ("cores", "gpus", "memory"))


def test_no_node_with_all_of_it_is_said_so() -> None:
    graph = a_graph(a_group(cores=64, gpus=0), a_group(cores=1, gpus=8))
    assert match(Demand(cores=8, gpus=2), graph) == Misfit("no single node has all that one task asks for")


def test_cores_are_exact_until_the_match_and_rounded_up_there() -> None:
    assert demand_of(Resources(tasks=3, cores="1500m", memory="0.5")).cores == 2
    assert demand_of(Resources(cores="1m")).cores == 1
    asked = demand_of(Resources(tasks=3, cores="1500m", gpus=2, memory="1.5GiB"))
    assert (asked.cores_total, asked.gpus_total, asked.memory_bytes_total) == (6, 6, 9 * GIB // 2)


def test_an_empty_request_fits_the_smallest_cluster() -> None:
    assert match(demand_of(Resources()), Graph([NodeGroup()])) == Match(1)


def test_the_largest_numbers_are_no_trouble() -> None:
    most = 10_000_000
    graph = Graph([NodeGroup(most, most, most, 2**63 - 1, 2**63 - 1)] * 3)
    assert match(Demand(most, most, cores=most, gpus=most, memory_bytes=2**63 - 1), graph) == Match(3 * most)
    assert isinstance(match(Demand(most, cores=2**63 - 1), graph), Misfit)
