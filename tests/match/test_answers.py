"""Answers: how many times, and if not, the first level that failed with its numbers; bounded whatever is asked."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand
from switchyard.match.engine import Match, Misfit, engine
from switchyard.match.free_graph import free_part
from switchyard.match.index import MatchIndex
from switchyard.match.nextgen_jobspec import demand_of_nextgen
from switchyard.match.plain_demand import demand_of_resources
from switchyard.match.requirement import Requirement
from switchyard.model.graph import FreeNodes, Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Resources
from tests.builders import GIB, a_demand, a_graph, a_group

ENGINES = ["shapes", "walk"]


def answer(demand: Demand, graph: Graph) -> Match | Misfit:
    """Of both engines, which must say the same."""
    found, other = (engine(name).satisfy(demand, graph) for name in ENGINES)
    assert found == other
    return found


def flux(*resources: Any, **system: Any) -> Demand:
    return demand_of_jobspec({"resources": list(resources), "attributes": {"system": system}})


def core(count: int) -> dict[str, Any]:
    return {"type": "core", "count": count}


def slot(count: int, *inside: Any) -> dict[str, Any]:
    return {"type": "slot", "count": count, "with": list(inside)}


def node(count: int, *inside: Any) -> dict[str, Any]:
    return {"type": "node", "count": count, "with": list(inside)}


FOUR = a_graph(a_group(12, cores=8, gpus=2), a_group(4, cores=16, gpus=0))

MISFITS = [
    (a_demand(gpus=4), "gpu", "needs 4 gpu per task; best node has 2; 12 nodes have at least 2", (4, 2, 12)),
    (a_demand(cores=17), "core", "needs 17 core per task; best node has 16; 4 nodes have at least 16", (17, 16, 4)),
    (
        a_demand(memory_bytes=9 * GIB),
        "memory",
        "needs 9GiB memory per task; best node has 8GiB; 16 nodes",
        (9 * GIB, 8 * GIB, 16),
    ),
    (a_demand(storage_bytes=1), "storage", "needs 1B storage per task; best node has 0B", (1, 0, 0)),
    (a_demand(tasks=161), "node", "needs 161 tasks; 16 nodes hold 160 at once", (161, 160, 16)),
    (a_demand(tasks=17, nodes=17), "node", "needs 17 nodes with a task each; 16 nodes can hold one", (17, 16, 16)),
    (a_demand(tasks=33, nodes=2), "node", "needs 33 tasks on 2 nodes; the best 2 hold 32 at once", (33, 32, 2)),
    (a_demand(cores=9, gpus=1), "node", "no single node has all that one task needs: 9 core, 1 gpu", (0, 0, 0)),
    (
        a_demand(cores=99, gpus=9),
        "core",
        "needs 99 core per task; best node has 16; 4 nodes have at least 16; needs 9 gpu",
        (99, 16, 4),
    ),
    (flux(node(17, slot(1, core(1)))), "node", "needs 17 node; the cluster has 16", (17, 16, 0)),
    (flux(node(5, slot(1, core(16)))), "node", "needs 5 slots; 16 nodes hold 4 at once", (5, 4, 16)),
    (flux(node(5, core(16))), "core", "needs 5 nodes with 16 core each; 4 nodes have that", (5, 4, 4)),
    (flux({"type": "rack", "with": [node(1)]}), "rack", "needs 1 rack; the cluster has 0", (1, 0, 0)),
    (flux({"type": "fpga"}), "fpga", "needs 1 fpga; the cluster has 0", (1, 0, 0)),
    (
        flux(node(12, {"type": "gpu", "count": 1}), node(5, core(1))),
        "node",
        "needs 17 node in all; the cluster has 16",
        (17, 16, 0),
    ),
    (
        flux(node(12, core(9)), node(4, core(16))),
        "core",
        "needs 12 nodes with 9 core each; 4 nodes have that",
        (12, 4, 4),
    ),
    (
        flux(node(3, core(16)), node(2, core(15))),
        "node",
        "every need fits by itself, but not all of them at the same time",
        (0, 0, 0),
    ),
    (
        flux(slot(1, node(17))),
        "node",
        "needs 17 node per slot; best cluster has 16; 1 cluster has at least 16",
        (17, 16, 1),
    ),
    (flux(slot(9, node(2))), "cluster", "needs 9 slots; 1 cluster holds 8 at once", (9, 8, 1)),
]


@pytest.mark.parametrize(("demand", "level", "says", "numbers"), MISFITS)
def test_a_misfit_names_the_first_level_that_failed(demand: Demand, level: str, says: str, numbers: Any) -> None:
    found = answer(demand, FOUR)
    assert isinstance(found, Misfit)
    assert says in found.reason
    assert (found.level, (found.needs, found.best, found.places)) == (level, numbers)


def test_what_the_whole_cluster_has_too_little_of_is_never_too_complex() -> None:
    """Twelve shapes of slot for the same nodes: hard to place, but there are not enough gpus for them all."""
    many = flux(*(slot(each + 1, core(each % 7 + 1), {"type": "gpu", "count": each % 3 + 1}) for each in range(12)))
    small = a_graph(a_group(4, cores=48, gpus=8))
    assert isinstance(answer(many, small), Misfit)


@pytest.mark.parametrize(
    "inside", [slot(1, {"type": "power", "count": 3, "unit": "kW"}), {"type": "power", "count": 3, "unit": "kW"}]
)
def test_a_unit_that_is_none_of_bytes_is_the_graphs_own(inside: Any) -> None:
    """And the index, the engines and the reason all read it so."""
    vertices = {"c": "cluster", "n": "node", "p": "power"}
    nodes = {name: {"metadata": {"type": kind, "size": 5 if kind == "power" else 1}} for name, kind in vertices.items()}
    edges = [{"source": source, "target": target} for source, target in ("cn", "np")]
    graph = compile_graph({"graph": {"nodes": nodes, "edges": edges}}, where="f")
    demand = flux(inside)
    assert isinstance(answer(demand, graph), Match)
    assert MatchIndex().fits(demand, [graph]) == [True]


def test_what_is_required_of_a_node_is_said_with_what_is_there() -> None:
    system = {"attach": {"node[0-2]": [{"driver": "470.1"}], "node3": [{"driver": "535.2"}]}}
    graph = compile_graph({"nodes": 6}, {"system": system}, where="f")
    newer = demand_of_resources(Resources(tasks=1), (Requirement("system", "driver", min="600"),))
    assert answer(newer, graph) == Misfit(
        "node", "needs system driver ≥ 600 at a node; 0 of 6 nodes have it; found 470.1, 535.2", 1, 0, 0, 0
    )
    assert answer(demand_of_resources(Resources(), (Requirement("system", "driver", min="500"),)), graph) == Match(1)
    both = (Requirement("system", "driver", min="500"), Requirement("system", "driver", max="480"))
    found = answer(demand_of_resources(Resources(), both), graph)
    assert isinstance(found, Misfit)
    assert "at one node; 0 of 6 nodes have all of it" in found.reason


def test_tasks_take_the_best_nodes_and_need_no_even_spread() -> None:
    graph = a_graph(a_group(1, cores=2), a_group(1, cores=8))
    assert answer(a_demand(tasks=9, nodes=2), graph) == Match(10)
    assert isinstance(answer(a_demand(tasks=11, nodes=2), graph), Misfit)
    assert isinstance(answer(a_demand(tasks=9, nodes=1), graph), Misfit)
    assert isinstance(answer(a_demand(tasks=3, nodes=3), graph), Misfit)


def test_an_empty_request_fits_the_smallest_cluster() -> None:
    assert answer(demand_of_resources(Resources()), a_graph(cores=1)) == Match(1)
    assert answer(Demand(), a_graph()) == Match(None)
    assert answer(flux(slot(3)), a_graph()) == Match(None), "a slot that holds nothing fits without end"


def test_the_largest_numbers_are_no_trouble() -> None:
    most = 10_000_000
    graph = compile_graph({"nodes": most, "each": {"core": most, "gpu": most, "memory": 2**63 - 1}}, where="f")
    big = a_demand(tasks=most, nodes=most, cores=most, gpus=most, memory_bytes=2**63 - 1)
    assert engine().satisfy(big, graph) == Match(most)
    assert isinstance(engine().satisfy(a_demand(tasks=most, cores=2**63 - 1), graph), Misfit)
    found = engine("walk").satisfy(big, graph)
    assert found == Match(None, "too complex to decide"), "a walk over 10^14 cores is not begun"


def test_units_are_honoured_and_a_bare_count_is_in_the_graphs_own() -> None:
    vertices = {"0": {"type": "node"}, "1": {"type": "memory", "size": 64, "unit": "GB"}}
    form = {
        "graph": {
            "nodes": {name: {"metadata": metadata} for name, metadata in vertices.items()},
            "edges": [{"source": "0", "target": "1"}],
        }
    }
    graph = compile_graph(form, where="f")
    assert answer(flux({"type": "memory", "count": 64}), graph) == Match(1)
    assert isinstance(answer(flux({"type": "memory", "count": 65}), graph), Misfit)
    assert answer(flux({"type": "memory", "count": 59, "unit": "GiB"}), graph) == Match(1)
    assert isinstance(answer(flux({"type": "memory", "count": 60, "unit": "GiB"}), graph), Misfit)


HOSTS = compile_graph(
    [
        {"nodes": 3, "hosts": "n[0-2]", "each": {"core": 4}, "properties": {"fast": True}},
        {"nodes": 3, "hosts": "n[3-5]", "each": {"core": 8}},
    ],
    where="f",
)


@pytest.mark.parametrize(
    ("constraint", "cores"),
    [
        ({"properties": ["fast"]}, 12),
        ({"properties": ["^fast"]}, 24),
        ({"hostlist": ["n[1-3]"]}, 16),
        ({"ranks": ["0,5"]}, 12),
        ({"not": [{"hostlist": ["n0"]}]}, 32),
        ({"and": [{"hostlist": ["n[0-4]"]}, {"not": [{"properties": ["fast"]}]}]}, 16),
        ({"or": [{"ranks": ["0"]}, {"hostlist": ["n5"]}]}, 12),
        ({}, 36),
    ],
)
def test_constraints_leave_only_some_nodes(constraint: Any, cores: int) -> None:
    demand = flux(slot(cores, core(1)), constraints=constraint)
    assert answer(demand, HOSTS) == Match(cores)
    assert isinstance(answer(flux(slot(cores + 1, core(1)), constraints=constraint), HOSTS), Misfit)
    assert demand.is_by_name == any(word in str(constraint) for word in ("hostlist", "ranks"))


@pytest.mark.parametrize(("constraint", "cores"), [("fast@gpu", 4), ("^fast@gpu", 2), ("old@core", 2), ("fast", 0)])
def test_a_property_of_rs_gpus_is_asked_by_its_whole_name(constraint: str, cores: int) -> None:
    entries = [{"rank": "0-1", "children": {"core": "0-1", "gpu": "0"}}, {"rank": "2", "children": {"core": "0-1"}}]
    execution = {"R_lite": entries, "properties": {"fast@gpu": "0-1", "old@core": "2"}}
    graph = compile_graph({"version": 1, "execution": execution}, where="R")
    asked = [flux(slot(count, core(1)), constraints={"properties": [constraint]}) for count in (cores or 1, cores + 1)]
    assert [isinstance(answer(demand, graph), Match) for demand in asked] == [cores > 0, False]


def test_a_constraint_that_no_node_meets_is_said_so() -> None:
    found = answer(flux(slot(1, core(1)), constraints={"properties": ["slow"]}), HOSTS)
    assert isinstance(found, Misfit)
    assert "no node of 6 meets the constraint" in found.reason


def test_slots_that_compete_for_the_same_nodes_are_decided_exactly() -> None:
    graph = a_graph(a_group(2, cores=8, gpus=1, memory_gib=8))
    cpu, gpu = slot(2, core(3)), slot(2, core(4), {"type": "gpu", "count": 1})
    assert isinstance(answer(flux(cpu, gpu), graph), Match)
    assert isinstance(answer(flux(slot(3, core(3)), gpu), graph), Misfit)
    assert isinstance(answer(flux(slot(3, core(2)), slot(2, core(5))), graph), Misfit)
    assert isinstance(answer(flux(slot(2, core(3)), slot(2, core(5))), graph), Match)
    bytes_ = [slot(2, core(1), {"type": "memory", "count": size, "unit": "GiB"}) for size in (3, 5)]
    assert isinstance(answer(flux(*bytes_), graph), Match)


def test_a_search_that_would_not_end_says_so_and_counts_as_may_run() -> None:
    graph = a_graph(*(a_group(50, cores=40 + index, memory_gib=60 + index) for index in range(8)))
    slots = [
        slot(270 + size, core(size), {"type": "memory", "count": 2 * size + 1, "unit": "GiB"}) for size in range(3, 10)
    ]
    for name in ENGINES:
        assert engine(name).satisfy(flux(*slots), graph) == Match(None, "too complex to decide")


def test_a_type_the_graph_does_not_have_names_a_slot_inside_one_node() -> None:
    def task(cores: int, **fields: Any) -> Demand:
        return demand_of_nextgen({"resources": {"a": {"type": "task", "with": [core(cores)], **fields}}})

    graph = a_graph(a_group(2, cores=4))
    assert answer(task(3, replicas=2), graph) == Match(2)
    assert isinstance(answer(task(5, replicas=1), graph), Misfit)
    bare = demand_of_nextgen({"resources": {"a": {"type": "task", "replicas": 1}}})
    assert isinstance(answer(bare, graph), Misfit), "a bare type that is not there is missing, not a name"


def test_what_is_free_is_asked_like_the_whole() -> None:
    graph = a_graph(a_group(4, cores=8, gpus=2))
    shape = graph.kinds[0].shape
    free = free_part(
        graph,
        [FreeNodes(shape, 1, core=8, gpu=2, memory=8 * GIB), FreeNodes(shape, 2, core=3, gpu=0, memory=GIB)],
    )
    assert free is not None
    assert (free.nodes, free.cores, free.gpus, free.memory_bytes) == (3, 14, 2, 10 * GIB)
    assert answer(a_demand(cores=3, memory_bytes=GIB), free) == Match(4)
    assert isinstance(answer(a_demand(tasks=2, gpus=2), free), Misfit)
    assert free_part(graph, []) is None
    assert free_part(graph, [FreeNodes(shape, 4)]) is None
    assert free_part(graph, [FreeNodes(shape, 4, core=8, gpu=2, memory=8 * GIB)]) == graph


def test_what_is_free_keeps_racks_and_sockets_apart() -> None:
    form = {"nodes": 2, "each": {"core": 8, "socket": 2}}
    graph = compile_graph(form, where="f")
    free = free_part(graph, [FreeNodes(graph.kinds[0].shape, 2, core=5)])
    assert free is not None
    socket = {"type": "socket", "count": 1, "with": [core(4)]}
    assert answer(flux(socket), free) == Match(2)
    assert isinstance(answer(flux({**socket, "count": 3}), free), Misfit)
