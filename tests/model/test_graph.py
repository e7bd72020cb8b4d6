"""The short form of a graph, and what a job may ask."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.errors import Malformed
from switchyard.model.decode import decode_json, load_yaml
from switchyard.model.graph import Graph, NodeGroup, graph_from_plain
from switchyard.model.job import JobRequest, JobSpec, Limits, Resources
from tests.builders import GIB, a_graph, a_group


def test_the_short_form_is_read() -> None:
    plain = load_yaml("nodes: 4\neach: {core: 8, memory: 16GiB, gpu: 1, storage: 1.5TiB}\n", where="f")
    assert graph_from_plain(plain, where="f") == Graph(
        [NodeGroup(4, cores=8, gpus=1, memory_bytes=16 * GIB, storage_bytes=1536 * GIB)]
    )


def test_a_list_of_groups_is_read_and_counted() -> None:
    plain = [{"nodes": 2, "each": {"core": 4}, "properties": {"kind": "thin"}}, {"each": {"core": 64, "socket": 2}}]
    graph = graph_from_plain(plain, where="f")
    assert [group.cores for group in graph.groups] == [4, 64]
    assert graph.groups[0].properties == {"kind": "thin"}
    assert (graph.nodes, graph.cores, graph.gpus, graph.memory_bytes) == (3, 72, 0, 0)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        (None, "expected"),
        ("4", "expected"),
        ([], "no node groups"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": -1}, "nodes"),
        ({"nodes": 10**12}, "nodes"),
        ({"nodes": 1, "each": {"core": 0}}, "each.core"),
        ({"nodes": 1, "each": {"cores": 1}}, "cores"),
        ({"node": 1}, "node"),
        ({"each": {"memory": "16 GiB"}}, "16 GiB"),
        ({"each": {"memory": "99Ei"}}, "absurdly large"),
        ({"each": {"memory": -1}}, "each.memory"),
        ({"each": {"gpu": "2"}}, "each.gpu"),
        ({"properties": {"a\n": "b"}}, "valid name"),
        ([{"nodes": 1}, {"nodes": True}], "[1].nodes"),
    ],
)
def test_a_bad_graph_is_refused_with_its_place(plain: Any, says: str) -> None:
    with pytest.raises(Malformed) as caught:
        graph_from_plain(plain, where="graph.yaml")
    assert "graph.yaml" in caught.value.detail
    assert says in caught.value.detail


def test_a_graph_survives_its_journey() -> None:
    graph = a_graph(a_group(3, gpus=2), a_group(1, cores=64))
    assert decode_json(msgspec.json.encode(graph), Graph) == graph
    with pytest.raises(Malformed):
        decode_json(b'{"groups":[]}', Graph)


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
