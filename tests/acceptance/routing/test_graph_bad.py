"""Graphs, subsystems and demands that are wrong, large or hostile: a clear no, and others are served meanwhile."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_USAGE
from tests.acceptance.stage import Stage, staged

pytestmark = pytest.mark.xdist_group("graph-bad")

SHORT = {"nodes": 2, "each": {"core": 4}, "hosts": "n[0-1]"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made, made.agent("works"):
        made.post("/v1/clusters", {"name": "alpha"})
        assert made.call("PUT", "/v1/clusters/alpha/graph", SHORT).status == 200
        yield made


def jgf(vertices: dict[str, Any], *edges: tuple[str, str]) -> dict[str, Any]:
    nodes = {name: {"metadata": metadata} for name, metadata in vertices.items()}
    return {"graph": {"nodes": nodes, "edges": [{"source": a, "target": b, "relation": "contains"} for a, b in edges]}}


C, N, RACK = {"type": "cluster"}, {"type": "node"}, {"type": "rack"}

GRAPHS: list[tuple[str, Any, str]] = [
    ("a vertex that is its own parent", jgf({"c": C, "n": N}, ("c", "n"), ("n", "n")), "n"),
    ("a cycle", jgf({"c": C, "n": N, "s": {"type": "socket"}}, ("c", "n"), ("n", "s"), ("s", "n")), "n"),
    ("nothing but a cycle", jgf({"a": C, "b": N}, ("a", "b"), ("b", "a")), "circle"),
    ("two roots", jgf({"c": C, "n": N}), "root"),
    ("an edge to nothing", jgf({"c": C, "n": N}, ("c", "n"), ("c", "x")), "edges[1]"),
    ("an edge from nothing", jgf({"c": C, "n": N}, ("c", "n"), ("x", "n")), "edges[1]"),
    (
        "two parents",
        jgf({"c": C, "n": N, "m": N, "k": {"type": "core"}}, *(("c", "n"), ("c", "m"), ("n", "k"), ("m", "k"))),
        "k",
    ),
    ("a type that is a number", jgf({"c": C, "n": {"type": 7}}, ("c", "n")), "n"),
    ("a size that is a text", jgf({"c": C, "n": {"type": "node", "size": "4"}}, ("c", "n")), "n"),
    ("a negative size", jgf({"c": C, "n": {"type": "node", "size": -1}}, ("c", "n")), "n"),
    ("a size of half a node", jgf({"c": C, "n": {"type": "node", "size": 0.5}}, ("c", "n")), "n"),
    ("a billion cores in one", jgf({"c": C, "n": {"type": "core", "size": 10**9}}, ("c", "n")), "n"),
    ("a billion nodes", {"nodes": 10**9, "each": {"core": 1}}, "nodes"),
    ("a negative number of nodes", {"nodes": -1}, "nodes"),
    ("a number of nodes in words", {"nodes": "many"}, "nodes"),
    ("a part nobody knows", {"nodes": 1, "each": {"quark": 3}}, "quark"),
    ("memory in bananas", {"nodes": 1, "each": {"core": 1, "memory": "3bananas"}}, "3bananas"),
    ("more nodes than hosts", {"nodes": 3, "each": {"core": 1}, "hosts": "n[0-1]"}, "hosts"),
    ("a property that holds a list", {"nodes": 1, "properties": {"a": [1]}}, "properties"),
    ("a property of thirty digits", {"nodes": 1, "properties": {"a": 10**30}}, "properties"),
    ("a property with an endless name", jgf({"c": C, "n": {**N, "properties": {"a" * 300: 1}}}, ("c", "n")), "n"),
    (
        "R with a part that has no name",
        {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"": "0"}}]}},
        "",
    ),
    ("no groups", [], ""),
    ("an empty group", {}, ""),
    ("nothing", None, ""),
    ("a number", 7, ""),
    ("R of another version", {"version": 2, "execution": {"R_lite": []}}, ""),
    (
        "R with a rank that is none",
        {"version": 1, "execution": {"R_lite": [{"rank": "x", "children": {"core": "0"}}]}},
        "",
    ),
    ("compact, with a child that is not there", {"shapes": [{"type": "cluster", "children": [[7, 1]]}]}, "7"),
    ("compact, its own child", {"shapes": [{"type": "cluster", "children": [[0, 1]]}]}, "0"),
    ("JGF without nodes", {"graph": {}}, ""),
    ("JGF with nodes that are texts", {"graph": {"nodes": ["a"], "edges": []}}, ""),
    ("JGF with edges that are numbers", {"graph": {"nodes": {"c": {"metadata": C}}, "edges": [7]}}, ""),
]


@pytest.mark.parametrize(("what", "graph", "place"), GRAPHS, ids=[row[0] for row in GRAPHS])
def test_graph_is_refused_with_its_place(stage: Stage, what: str, graph: Any, place: str) -> None:
    before = stage.get("/v1/clusters/alpha/graph")
    answer = stage.call("PUT", "/v1/clusters/alpha/graph", graph)
    assert (answer.status, answer.json["code"]) == (400, "malformed"), answer.body
    assert place in answer.json["detail"]
    assert stage.get("/v1/clusters/alpha/graph") == before


def test_the_command_shows_the_place(stage: Stage, tmp_path: Path) -> None:
    what, graph, place = GRAPHS[1]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph))
    done = stage.yard("cluster", "set-graph", "alpha", str(file))
    assert (done.returncode, place in done.stderr) == (EXIT_USAGE, True), what


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"a: [",
        b"a: &a [*a]",
        b"!!python/object/apply:os.system ['true']",
        b"nodes: 1\nnodes: 2",
        b'{"nodes": 1, "nodes": 2}',
        b"[" * 100_000,
        b'{"graph":' * 100_000,
        b'{"graph": {"nodes": {"a": ' * 50_000,
        b"- " * 100_000,
        b"\x00" * 1000,
        b"graph: {nodes: {a: {metadata: {type: cluster, size: .inf}}}}",
        b"nodes: 1\nproperties: {x: .nan}",
        b'nodes: 1\nproperties: {x: "\\ud800"}',
        b'hosts: "\\ud800"',
    ],
    ids=range(17),
)
def test_text_that_is_no_graph(stage: Stage, body: bytes) -> None:
    answer = stage.call("PUT", "/v1/clusters/alpha/graph", body)
    assert (answer.status, answer.json["code"]) == (400, "malformed"), answer.body


def test_packing_that_is_none(stage: Stage) -> None:
    for encoding, body in (
        ("gzip", b"not packed"),
        ("gzip", gzip.compress(b"nodes: 1", mtime=0)[:-5]),
        ("gzip", gzip.compress(b"nodes: 1") * 2),
        ("br", b"nodes: 1"),
        ("gzip, gzip", b"nodes: 1"),
    ):
        answer = stage.call("PUT", "/v1/clusters/alpha/graph", body, headers={"Content-Encoding": encoding})
        assert (answer.status, answer.json["code"]) == (400, "malformed"), answer.body


def test_bomb_ends_at_the_bound(stage: Stage) -> None:
    bomb = gzip.compress(bytes(300 * 2**20), 1)
    answer = stage.call("PUT", "/v1/clusters/alpha/graph", bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.json["code"]) == (413, "too-large")


SUBSYSTEMS: list[tuple[str, Any, str]] = [
    ("a host that is not there", {"attach": {"n7": [{"type": "shm"}]}}, "n7"),
    ("an edge from nothing", jgf({"x": {"type": "shm"}}, ("nowhere", "x")), "edges[0]"),
    ("an edge to nothing", jgf({"x": {"type": "shm"}}, ("n0", "y")), "edges[0]"),
    ("a vertex that is attached to nothing", jgf({"x": {"type": "shm"}, "y": {"type": "shm"}}, ("n0", "x")), "y"),
    ("a field that holds a list", {"attach": {"n0": [{"type": "shm", "sizes": [1, 2]}]}}, "sizes"),
    ("a field that holds a tree", {"attach": {"n0": [{"type": "shm", "of": {"a": 1}}]}}, "of"),
    ("a type that is a number", {"attach": {"n0": [{"type": 7}]}}, "type"),
    ("a size that is a text", jgf({"x": {"type": "shm", "size": "4"}}, ("n0", "x")), "x"),
    ("a vertex that is its own parent", jgf({"x": {"type": "shm"}}, ("x", "x")), "x"),
    ("a circle below what is attached", jgf({"x": {}, "y": {}}, ("n0", "x"), ("x", "y"), ("y", "x")), "x, y"),
    ("no vertices", jgf({}), "vertices"),
    ("ten million hosts that are not there", {"attach": {"m[0-9999999]": [{"type": "shm"}]}}, "m0"),
    ("no form at all", {"something": 1}, "attach"),
    ("nothing attached", {"attach": {}}, "attach"),
]


@pytest.mark.parametrize(("what", "graph", "place"), SUBSYSTEMS, ids=[row[0] for row in SUBSYSTEMS])
def test_subsystem_is_refused_with_its_place(stage: Stage, what: str, graph: Any, place: str) -> None:
    answer = stage.call("PUT", "/v1/clusters/alpha/subsystems/io", graph)
    assert (answer.status, answer.json["code"]) == (400, "malformed"), answer.body
    assert place in answer.json["detail"]
    assert stage.get("/v1/clusters/alpha/subsystems")["items"] == []


def test_what_could_not_be_read_again_is_not_kept(stage: Stage) -> None:
    """Each subsystem is within its bound, together they are not; the next change is taken as ever."""

    def put(name: str) -> int:
        fields = {"attach": {"n0": [{"type": name, "number": number} for number in range(600)]}}
        return stage.call("PUT", f"/v1/clusters/alpha/subsystems/{name}", fields).status

    assert [put("one"), put("two")] == [200, 400]
    assert stage.call("DELETE", "/v1/clusters/alpha/subsystems/one").status == 200
    more = SHORT | {"each": {"core": 5}}
    assert stage.call("PUT", "/v1/clusters/alpha/graph", more).json["totals"]["core"] == 10
    assert stage.get("/v1/clusters/alpha")["totals"]["core"] == 10
    assert stage.call("PUT", "/v1/clusters/alpha/graph", SHORT).status == 200


def nested(levels: int) -> str:
    return '{"type": "rack", "count": 1, "with": [' * levels + '{"type": "core", "count": 1}' + "]}" * levels


DEMANDS: list[tuple[str, str]] = [
    ("nested a thousand deep", f'{{"version": 1, "resources": [{nested(1000)}]}}'),
    ("nested a hundred deep", f'{{"version": 1, "resources": [{nested(100)}]}}'),
    ("nested without end", '{"version": 1, "resources": ' + "[" * 100_000),
    ("no resources", '{"version": 1}'),
    ("resources that are a number", '{"version": 1, "resources": 7}'),
    ("a type that is a number", '{"version": 1, "resources": [{"type": 7, "count": 1}]}'),
    ("a count of a billion texts", '{"version": 1, "resources": [{"type": "core", "count": "x"}]}'),
    ("a negative count", '{"version": 1, "resources": [{"type": "core", "count": -1}]}'),
    ("a count that is a list", '{"version": 1, "resources": [{"type": "core", "count": [1]}]}'),
    (
        "requires that hold a list",
        '{"version": 1, "resources": {"a": {"type": "core", "requires": [{"name": "io", "field": ["x"]}]}}}',
    ),
    (
        "a constraint nobody knows",
        '{"version": 1, "resources": [], "attributes": {"system": {"constraints": {"near": ["x"]}}}}',
    ),
]


@pytest.mark.parametrize(("what", "demand"), DEMANDS, ids=[row[0] for row in DEMANDS])
def test_demand_is_refused(stage: Stage, what: str, demand: str) -> None:
    for path, body in (
        ("/v1/clusters/fit", f'{{"jobspec": {demand}}}'),
        ("/v1/jobs", f'{{"spec": {{"command": ["x"], "demand": {demand}}}}}'),
        ("/v1/plan", f'{{"spec": {{"command": ["x"], "demand": {demand}}}}}'),
    ):
        answer = stage.call("POST", path, body.encode())
        assert (answer.status, answer.json["code"]) == (400, "malformed"), (path, answer.body)


def test_a_billion_is_refused(stage: Stage) -> None:
    body = {
        "jobspec": {
            "version": 1,
            "resources": [{"type": "slot", "count": 10**9, "with": [{"type": "core", "count": 1}]}],
        }
    }
    answer = stage.call("POST", "/v1/clusters/fit", body)
    assert (answer.status, answer.json["code"]) == (400, "malformed"), answer.body


def test_versions_of_four_parts_are_compared_part_by_part(stage: Stage) -> None:
    put = {"attach": {"n0": [{"type": "system", "gpu-driver": "535.129.3.10"}]}}
    assert stage.call("PUT", "/v1/clusters/alpha/subsystems/system", put).status == 200
    try:
        for bound, is_met in (("535.129.3.9", True), ("535.129.3.11", False)):
            spec = {"command": ["x"], "compatibility": [{"field": "gpu-driver", "min": bound}]}
            answer = stage.post("/v1/clusters/fit", {"job": {"spec": spec}})
            assert next(each["ever"] for each in answer["items"] if each["cluster"] == "alpha") is is_met
    finally:
        stage.call("DELETE", "/v1/clusters/alpha/subsystems/system")


def test_shapes_that_compete_for_the_same_nodes_have_an_answer(stage: Stage) -> None:
    def slot(label: str, cores: int) -> dict[str, Any]:
        return {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": cores}]}

    def ever(*cores: int) -> Any:
        task = {"command": ["x"], "slot": "0", "count": {"per_slot": 1}}
        resources = [slot(str(n), each) for n, each in enumerate(cores)]
        body = {"jobspec": {"version": 1, "resources": resources, "tasks": [task], "attributes": {}}}
        answer = stage.post("/v1/clusters/fit", body)
        return next(each["ever"] for each in answer["items"] if each["cluster"] == "alpha")

    assert ever(3, 3) is True
    assert ever(3, 3, 2) is False, "two nodes of four cores"
    assert ever(3, 1, 2, 2) is True


def test_the_server_serves_others_while_it_reads_what_is_large_and_wrong(stage: Stage) -> None:
    """A cycle behind a hundred thousand vertices, and one without end: submits and answers go on."""
    ring = [f"v{n}" for n in range(100_000)]
    cyclic = json.dumps(jgf(dict.fromkeys(ring, N), *zip(ring, [*ring[1:], ring[0]], strict=True))).encode()
    chain = json.dumps(jgf(dict.fromkeys(ring, RACK), *pairwise(ring))).encode()
    answers: list[int] = []
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.wait(0.02):
            answers.append(stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "hold": True}).status)

    others = threading.Thread(target=serve)
    others.start()
    try:
        for body in (cyclic, chain):
            before = len(answers)
            refused = stage.call("PUT", "/v1/clusters/alpha/graph", body)
            assert (refused.status, refused.json["code"]) == (400, "malformed"), refused.body[:300]
            assert len(answers) > before, "nobody else was served meanwhile"
    finally:
        stopped.set()
        others.join()
    assert set(answers) == {201}
    assert stage.ended(stage.submit("true", cluster="works"))["state"] == "SUCCEEDED"
