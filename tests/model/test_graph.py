"""Graphs in every form: what is read is exact, and what cannot be is refused by its place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from switchyard.errors import Malformed
from switchyard.model.graph import AttachedVertex, Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import JobRequest, JobSpec, Limits, Resources
from switchyard.model.wire.decode import decode_json, load_yaml
from tests.builders import GIB, a_graph, a_group


def jgf(vertices: dict[str, Any], *edges: tuple[str, str], form: str = "map") -> dict[str, Any]:
    """A JGF: version 2 with a map of nodes, or version 1 with a list. A text is a vertex of that type."""
    made = {
        name: {"metadata": {"type": fields} if isinstance(fields, str) else fields} for name, fields in vertices.items()
    }
    nodes: Any = made if form == "map" else [{"id": name, **vertex} for name, vertex in made.items()]
    relation = {"relation": "contains"} if form == "map" else {}
    return {"graph": {"nodes": nodes, "edges": [{"source": a, "target": b, **relation} for a, b in edges]}}


SMALL = {"0": "cluster", "1": "node", "2": "core", "3": "core", "4": {"type": "memory", "size": 64, "unit": "GB"}}
SMALL_EDGES = (("0", "1"), ("1", "2"), ("1", "3"), ("1", "4"))


def test_the_short_form_is_read() -> None:
    text = 'nodes: 4\neach: {socket: 2, core: 8, memory: 16GiB, gpu: 1, storage: 1.5TiB}\nhosts: "n[0-3]"\n'
    for content in (text.encode(), load_yaml(text, where="f"), json.dumps(load_yaml(text, where="f")).encode()):
        graph = compile_graph(content, where="f")
        (kind,) = graph.kinds
        assert (kind.count, kind.cores, kind.gpus) == (4, 8, 1)
        assert (kind.memory_bytes, kind.storage_bytes) == (16 * GIB, 1536 * GIB)
        assert graph.totals["socket"] == 8
        assert graph.host_names == ["n0", "n1", "n2", "n3"]


def test_a_list_of_groups_is_read_and_counted() -> None:
    plain = [{"nodes": 2, "each": {"core": 4}, "properties": {"kind": "thin"}}, {"each": {"core": 64, "socket": 2}}]
    graph = compile_graph(plain, where="f")
    assert sorted(kind.cores for kind in graph.kinds) == [4, 64]
    assert next(kind for kind in graph.kinds if kind.cores == 4).properties == {"kind": "thin"}
    assert (graph.nodes, graph.cores, graph.gpus, graph.memory_bytes) == (3, 72, 0, 0)


def test_uneven_sockets_hold_all_cores() -> None:
    assert compile_graph({"each": {"core": 7, "socket": 2}}, where="f").totals == {
        "cluster": 1,
        "core": 7,
        "node": 1,
        "socket": 2,
    }


@pytest.mark.parametrize("form", ["map", "list"])
def test_both_versions_of_jgf_are_read(form: str) -> None:
    graph = compile_graph(json.dumps(jgf(SMALL, *SMALL_EDGES, form=form)).encode(), where="f")
    assert graph.totals == {"cluster": 1, "core": 2, "memory": 64 * 10**9, "node": 1}
    assert graph == compile_graph(jgf(SMALL, *SMALL_EDGES, form=form), where="f")


def test_the_order_in_which_a_graph_is_told_does_not_matter() -> None:
    turned = jgf(dict(reversed(SMALL.items())), *reversed(SMALL_EDGES))
    assert compile_graph(turned, where="f").signature == compile_graph(jgf(SMALL, *SMALL_EDGES), where="f").signature


def test_the_root_is_the_vertex_without_a_parent_and_back_edges_are_left_out() -> None:
    form = jgf({"101": "node", "100": "cluster", "7": "core"}, ("100", "101"), ("101", "7"))
    form["graph"]["edges"] += [
        {"source": "101", "target": "100", "relation": "in"},
        {"source": "x", "target": "y", "relation": "in"},
        {"source": "7", "target": "101", "metadata": {"subsystem": "power"}},
    ]
    assert compile_graph(form, where="f").totals == {"cluster": 1, "core": 1, "node": 1}


def test_names_and_ranks_stand_beside_the_shapes() -> None:
    names = {f"{index}": {"type": "node", "name": f"n{index}", "rank": 10 - index} for index in range(1, 4)}
    plain = {f"{index}": "node" for index in range(1, 4)}
    edges = [("0", name) for name in names]
    named, bare = (compile_graph(jgf({"0": "cluster", **each}, *edges), where="f") for each in (names, plain))
    assert named.signature == bare.signature
    assert dict(zip(named.host_names, named.rank_numbers, strict=True)) == {"n1": 9, "n2": 8, "n3": 7}


def test_a_host_without_a_name_has_the_one_that_fluxion_gives_it() -> None:
    """Fluxion leaves out the name where it is the base name (or the type) with the id."""
    hosts: dict[str, Any] = {
        "1": {"type": "node", "id": 5},
        "2": {"type": "node", "id": 6, "basename": "tux"},
        "3": {"type": "storage_node", "id": 7, "name": "rabbit"},
        "4": {"type": "node"},
    }
    graph = compile_graph(jgf({"0": "cluster", **hosts}, *(("0", name) for name in hosts)), where="f")
    assert sorted(graph.host_names) == ["4", "node5", "rabbit", "tux6"]
    subsystem = {"attach": {"tux6": [{"type": "nvme"}]}}
    attached = compile_graph(
        jgf({"0": "cluster", **hosts}, *(("0", name) for name in hosts)), {"io": subsystem}, where="f"
    )
    by_name = dict(zip(attached.host_names, attached.host_shapes(), strict=True))
    assert [name for name, shape in by_name.items() if attached.shapes[shape].attached] == ["tux6"]


def test_flux_r_is_read() -> None:
    form = {
        "version": 1,
        "execution": {
            "R_lite": [
                {"rank": "19-22", "children": {"core": "0-47", "gpu": "0-7"}},
                {"rank": "30", "children": {"core": "0-3"}},
            ],
            "nodelist": ["node[186-189]", "login1"],
            "properties": {"fast": "19,21", "+local": "30", "p@gpu": "19"},
            "starttime": 0.0,
        },
    }
    graph = compile_graph(json.dumps(form).encode(), where="R")
    assert (graph.nodes, graph.cores, graph.gpus) == (5, 196, 32)
    where = dict(zip(graph.host_names, graph.rank_numbers, strict=True))
    assert where == {"node186": 19, "node187": 20, "node188": 21, "node189": 22, "login1": 30}
    assert sorted((kind.count, sorted(kind.properties)) for kind in graph.kinds) == [
        (1, ["fast"]),
        (1, ["fast", "p@gpu"]),
        (1, ["local"]),
        (2, []),
    ]
    gpus = [shape for shape in graph.shapes if shape.type == "gpu"]
    assert sorted(sorted(shape.properties) for shape in gpus) == [[], ["p"]], "RFC 20: of the node, and of its gpus"


def test_the_graph_inside_an_r_says_more_and_is_taken() -> None:
    form = {
        "version": 1,
        "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]},
        "scheduling": jgf(SMALL, *SMALL_EDGES),
    }
    assert compile_graph(form, where="R").memory_bytes == 64 * 10**9


BAD: list[tuple[Any, str]] = [
    (None, "expected"),
    ("4", "expected"),
    ([], "no node groups"),
    ({"nodes": 0}, "nodes"),
    ({"nodes": -1}, "nodes"),
    ({"nodes": 10**9}, "nodes"),
    ({"nodes": 1, "each": {"core": 0}}, "each.core"),
    ({"nodes": 1, "each": {"core": 10**9}}, "each.core"),
    ({"nodes": 1, "each": {"cores": 1}}, "cores"),
    ({"node": 1}, "node"),
    ({"each": {"memory": "16 GiB"}}, "16 GiB"),
    ({"each": {"memory": "99Ei"}}, "absurdly large"),
    ({"each": {"memory": -1}}, "each.memory"),
    ({"each": {"gpu": "2"}}, "each.gpu"),
    ({"properties": {"a\n": "b"}}, "valid name"),
    ({"properties": {"a": ["b"]}}, "properties"),
    ([{"nodes": 1}, {"nodes": True}], "[1].nodes"),
    ({"nodes": 3, "hosts": "n[0-3]"}, "4 hosts for 3 nodes"),
    ({"hosts": "n[3-0]"}, "backwards"),
    ({"hosts": ""}, "not a host"),
    ([{"nodes": 10**7}, {"nodes": 1}], "the most is"),
    (jgf({}), "no vertices"),
    (jgf({"a": "cluster"}, ("a", "a")), "edges[0]: vertex 'a' is its own parent"),
    (jgf({"a": "cluster", "b": "node"}, ("a", "b"), ("b", "a")), "every vertex has a parent"),
    (jgf({"r": "cluster", "a": "node", "b": "core"}, ("a", "b"), ("b", "a")), "go in a circle"),
    (jgf({"a": "cluster", "b": "node"}), "2 vertices without a parent, 'a', 'b'"),
    (jgf({"a": "cluster", "b": "node", "c": "core"}, ("a", "b"), ("a", "c"), ("b", "c")), "edges[2]: vertex 'c' has a"),
    (jgf({"a": "cluster"}, ("a", "x")), "edges[0]: a → x: there is no vertex 'x'"),
    (jgf({"a": "cluster"}, ("x", "a")), "there is no vertex 'x'"),
    (jgf({"a": {"type": "cluster", "size": -1}}), "vertex 'a': the size is -1"),
    (jgf({"a": {"type": "cluster", "size": 1.5}}), "vertex 'a': the size is 1.5"),
    (jgf({"a": {"type": "core", "size": 10**9}}), "vertex 'a': the size is 1000000000"),
    (jgf({"a": {"type": "memory", "size": 2**64}}), "vertex 'a'"),
    (jgf({"a": "cluster", "b": {"type": 7}}, ("a", "b")), "vertex 'b': Expected `str`, got `int`"),
    (jgf({"a": {"type": "core", "size": "4"}}), "vertex 'a': Expected"),
    (jgf({"a": {"type": "core", "size": True}}), "vertex 'a': Expected"),
    (jgf({"a": {"type": ["core"]}}), "vertex 'a': Expected"),
    (jgf({"a": {"type": ""}}), "is not a type"),
    (jgf({"a": {"type": "core", "properties": {"x": ["y"]}}}), "vertex 'a': properties"),
    (jgf({"a": "node", "b": "node"}, ("a", "b")), "vertex 'a' is a node with a node inside"),
    ({"graph": {"nodes": [{"metadata": {}}], "edges": []}}, "nodes[0]: a vertex has an `id`"),
    ({"graph": {"nodes": [{"id": "a"}, {"id": "a"}], "edges": []}}, "vertex 'a' is there twice"),
    ({"graph": {"nodes": {"a": {}}, "edges": [{"source": "a"}]}}, "edges[0]"),
    ({"graph": 7}, "`graph` holds nodes and edges"),
    ({"version": 2, "execution": {}}, "R version '2'"),
    ({"version": 1, "execution": {}}, "R_lite"),
    ({"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "9-0"}}]}}, "backwards"),
    (
        {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0-999999999"}}]}},
        "R_lite[0].children",
    ),
    (
        {"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {}}], "nodelist": ["n1"]}},
        "1 hosts for 2 ranks",
    ),
    ({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {}}] * 2}}, "a rank twice"),
    ({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"": "0"}}]}}, "R_lite[0].children"),
    ({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"a b": "0"}}]}}, "R_lite[0].children"),
    ({}, "no node groups"),
    (jgf({"a": {"type": "core", "properties": {"x" * 300: 1}}}), "vertex 'a': properties"),
    (jgf({"a": {"type": "core", "properties": {str(number): 1 for number in range(300)}}}), "vertex 'a': properties"),
    (jgf({"a": {"type": "core", "properties": {"x": 10**30}}}), "vertex 'a': properties"),
    ({"nodes": 1, "properties": {"x": -(10**30)}}, "properties"),
]


@pytest.mark.parametrize(("form", "says"), BAD)
def test_a_bad_graph_is_refused_with_its_place(form: Any, says: str) -> None:
    for content in (form, json.dumps(form).encode()):
        with pytest.raises(Malformed) as caught:
            compile_graph(content, where="graph.yaml")
        assert "graph.yaml" in caught.value.detail
        assert says in caught.value.detail


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"nodes: [",
        b'{"graph":{"nodes":{},"edges":[}}',
        b'{"nodes":1,"nodes":2}',
        b"[" * 100_000,
        b'{"graph":{"nodes":{"0":{"metadata":{"type":"cluster","size":1e400}}},"edges":[]}}',
        b'{"graph":{"nodes":{"0":{"metadata":{"type":7}}},"edges":[]},"far":1e400}',
        b'{"graph":{"nodes":{"0":{"metadata":{"type":7,"name":"\xff"}}},"edges":[]}}',
        b'{"graph":{"nodes":{"0":{"metadata":{"type":7}}},"deep":' + b"[" * 5000 + b"]" * 5000 + b"}}",
        b"nodes: !!timestamp foo",
        b"graph: {nodes: {a: {metadata: {type: cluster, size: .inf}}}}",
        b"graph: {nodes: {a: {metadata: {type: cluster, size: .nan}}}}",
        b"graph: {nodes: {a: {metadata: {type: cluster, properties: {x: .nan}}}}}",
        b"nodes: 1\nproperties: {x: .inf}",
        b'nodes: 1\nproperties: {x: "\\ud800"}',
        b'hosts: "\\ud800"',
    ],
)
def test_a_broken_file_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        compile_graph(content, where="graph.yaml")


def test_a_deep_graph_is_refused_and_harms_nobody() -> None:
    vertices = {str(index): "group" for index in range(100_000)}
    edges = [(str(index), str(index + 1)) for index in range(99_999)]
    with pytest.raises(Malformed, match="nested deeper than 64"):
        compile_graph(jgf(vertices, *edges), where="f")


def io(vertices: dict[str, Any], *edges: tuple[str, str]) -> dict[str, Any]:
    return {"io": jgf(vertices, *edges)}


def test_a_subsystem_is_attached_to_the_vertices_its_edges_name() -> None:
    shm = {"type": "shm", "name": "shm0", "size": 1, "paths": {"containment": "/io0/shm0"}, "capacity": 2**40}
    graph = compile_graph(
        jgf(SMALL, *SMALL_EDGES),
        io({"io0": "io", "io1": shm, "io2": "nvme"}, ("io0", "io1"), ("1", "io1"), ("1", "io2"), ("1", "io1")),
        where="f",
    )
    (kind,) = graph.kinds
    assert kind.attached == [
        AttachedVertex("io", {"capacity": 2**40, "size": 1, "type": "shm"}),
        AttachedVertex("io", {"type": "nvme"}),
    ]


def test_our_short_subsystem_attaches_by_host() -> None:
    system = {"attach": {"n[1-2]": [{"type": "system", "arch": "arm64", "cores": 4, "big": True}], "n3": []}}
    graph = compile_graph({"nodes": 4, "hosts": "n[0-3]"}, {"system": system}, where="f")
    assert sorted((kind.count, len(kind.attached)) for kind in graph.kinds) == [(2, 0), (2, 1)]
    assert graph.totals["node"] == 4
    first = graph.kinds[0]
    assert set(graph.host_names[: first.count]) == ({"n1", "n2"} if first.attached else {"n0", "n3"})
    numbered = compile_graph({"nodes": 2}, {"system": {"attach": {"node1": [{"type": "x"}]}}}, where="f")
    assert sorted(numbered.host_names) == ["node0", "node1"]
    assert numbered.signature != compile_graph({"nodes": 2}, where="f").signature


@pytest.mark.parametrize(
    ("subsystems", "says"),
    [
        (io({"io1": "shm"}, ("9", "io1")), "edges[0]: '9' is no vertex of the main graph"),
        (io({"io1": "shm"}, ("1", "io9")), "edges[0]: 1 → io9: the subsystem has no vertex 'io9'"),
        (io({"io1": "shm"}), "no edge reaches io1"),
        (io({"io0": "io", "io1": "shm", "io2": "x"}, ("1", "io1")), "no edge reaches io2"),
        (io({"io1": {"type": "shm", "tags": ["a"]}}, ("1", "io1")), "vertex 'io1': the field 'tags' holds a list"),
        (io({"io1": {"type": "shm", "deep": {"a": 1}}}, ("1", "io1")), "the field 'deep' holds a dict"),
        (io({"io1": {"type": 5}}, ("1", "io1")), "a type is a text"),
        ({"cluster": jgf({"a": "x"}, ("1", "a"))}, "the name 'cluster' is taken"),
        ({"containment": jgf({"a": "x"}, ("1", "a"))}, "the name 'containment' is taken"),
        ({"a b": jgf({"a": "x"}, ("1", "a"))}, "is not a name for a subsystem"),
        ({"io": {"attach": {"n[0-": []}}}, "attach.n[0-"),
        ({"io": {"attach": {"elsewhere": [{"type": "x"}]}}}, "'elsewhere' is no vertex"),
        ({"io": {"attach": {}}}, "attach"),
        ({"io": []}, "expected a JGF"),
        ({"io": {"graph": []}}, "`graph` holds nodes and edges"),
        ({"io": {"graph": {"nodes": [1], "edges": []}}}, "nodes[0]"),
        ({"io": {"graph": {"nodes": {"a": {"metadata": {}}}, "edges": [7]}}}, "edges[0]"),
        ({"io": {"graph": {"nodes": {}, "edges": []}}}, "no vertices"),
        (io({"io1": {"type": "shm"}}, ("io1", "io1")), "io1 contain each other, or themselves"),
        (io({"a": {"type": "x"}, "b": {"type": "x"}}, ("1", "a"), ("a", "b"), ("b", "a")), "a, b contain each other"),
        (io({"io1": {"type": "shm", "size": "4"}}, ("1", "io1")), "vertex 'io1': the size is '4'"),
        (io({"io1": {"type": "shm", "size": -4}}, ("1", "io1")), "vertex 'io1': the size is '-4'"),
        (io({"io1": {"type": "shm", "x": 10**30}}, ("1", "io1")), "vertex 'io1'"),
        (io({"io1": {"type": "shm", "": 1}}, ("1", "io1")), "vertex 'io1'"),
        ({"io": {"attach": {"n[0-9999999]": [{"type": "x"}]}}}, "'n0' is no vertex"),
    ],
)
def test_a_bad_subsystem_is_refused_with_its_place(subsystems: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as caught:
        compile_graph(jgf(SMALL, *SMALL_EDGES), subsystems, where="f")
    assert f"f: subsystem {next(iter(subsystems))}" in caught.value.detail
    assert says in caught.value.detail


def test_a_graph_survives_its_journey() -> None:
    graph = a_graph(a_group(3, gpus=2), a_group(1, cores=64))
    again = decode_json(msgspec.json.encode(graph), Graph)
    assert again == graph
    assert msgspec.json.encode(again) == msgspec.json.encode(graph)
    assert again.signature == graph.signature


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"shapes":[]}', "shapes"),
        ('{"shapes":[{"type":7}]}', "shapes[0].type"),
        ('{"shapes":[{"type":"a","children":[[0,1]]}]}', "does not stand before it"),
        ('{"shapes":[{"type":"a","children":[[-1,1]]}]}', "does not stand before it"),
        ('{"shapes":[{"type":"core"},{"type":"node","children":[[0,1000000000]]}]}', "1000000"),
        ('{"shapes":[{"type":"core","size":1000000000}]}', "the most of a core"),
        ('{"shapes":[{"type":"core"},{"type":"node"}]}', "belongs to nothing"),
        ('{"shapes":[{"type":"node"},{"type":"node","children":[[0,1]]}]}', "a node with a node inside"),
        ('{"shapes":[{"type":"node"}],"hosts":"n[0-3]"}', "hosts names 4 hosts, the shapes have 1"),
        ('{"shapes":[{"type":"node"},{"type":"a","children":[[0,9000000],[0,9000000]]}]}', "the most is"),
        (
            '{"shapes":[{"type":"a"},{"type":"a","children":[[0,9000000]]},{"type":"a","children":[[1,9000000]]},'
            '{"type":"a","children":[[2,9000000]]}]}',
            "vertices",
        ),
    ],
)
def test_a_compact_graph_from_outside_is_checked(body: str, says: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode_json(body.encode(), Graph)
    assert says in caught.value.detail


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cores": 0}, "more than zero"),
        ({"cores": "0m"}, "more than zero"),
        ({"nodes": 3, "tasks": 2}, "cannot exceed tasks"),
        ({"time_limit": "soon"}, "not a duration"),
        ({"memory": "lots"}, "not an amount"),
        ({"memory": "2GiB", "limits": Limits(memory="1GiB")}, "below the request"),
        ({"gpus": 2, "limits": Limits(gpus=1)}, "below the request"),
        ({"gpus": 1, "limits": Limits(gpus=2)}, "must be the request"),
        ({"cores": "500m", "limits": Limits(cores="499m")}, "below the request"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Resources(**asked)


def test_what_a_process_could_not_be_given_is_refused() -> None:
    for spec in (
        b'{"command":[""]}',
        b'{"command":[]}',
        b'{"command":["a\\u0000"]}',
        b'{"command":["a"],"cwd":"\\u0000"}',
    ):
        with pytest.raises(Malformed):
            decode_json(b'{"spec":' + spec + b"}", JobRequest)
    for key in ('"A=B"', '""', '"A\\n"', '"A\\u0000"'):
        with pytest.raises(Malformed):
            decode_json(f'{{"spec":{{"command":["a"],"env":{{{key}:"1"}}}}}}'.encode(), JobRequest)
    assert decode_json(b'{"command":["sh","-c","echo a\\nb\\t"],"env":{"A":"1\\n2"}}', JobSpec).env == {"A": "1\n2"}
