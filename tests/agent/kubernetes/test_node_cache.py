"""The cache that a reflector fills: changes that matter count, broken objects do not."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.features.kubernetes.agent.nodes.cluster import ObjectCache
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse, read_node, read_pod_use
from tests.agent.kubernetes.node_builders import node_object, pod_object


def raw(body: dict[str, Any], uid: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({**body, "metadata": {**body["metadata"], "uid": uid}}))


def test_nodes_come_change_and_go() -> None:
    cache: ObjectCache[KubernetesNode] = ObjectCache(read_node)
    cache.replace([raw(node_object("a"), "1"), raw(node_object("b"), "2"), msgspec.Raw(b'{"metadata": {"uid": "3"}}')])
    assert [node.name for node in cache.all()] == ["a", "b"]
    version = cache.version
    heartbeat = node_object("a")
    heartbeat["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:00Z"
    cache.change("MODIFIED", raw(heartbeat, "1"))
    assert cache.version == version, "a heartbeat changes nothing"
    cache.change("MODIFIED", raw(node_object("a", unschedulable=True), "1"))
    cache.change("DELETED", raw(node_object("b"), "2"))
    cache.change("ADDED", raw(node_object("c"), "4"))
    assert [(node.name, node.is_cordoned) for node in cache.all()] == [("a", True), ("c", False)]
    assert cache.version == version + 3


def test_a_new_object_of_an_old_name() -> None:
    cache: ObjectCache[KubernetesNode] = ObjectCache(read_node)
    cache.change("ADDED", raw(node_object("a"), "new"))
    cache.change("DELETED", raw(node_object("a"), "old"))
    assert len(cache.all()) == 1


def test_pods_that_end_or_break_take_nothing() -> None:
    cache: ObjectCache[PodUse] = ObjectCache(read_pod_use)
    cache.replace(iter([raw(pod_object({"cpu": 1}), "1"), raw(pod_object({"cpu": 2}), "2")]))
    cache.change("MODIFIED", raw(pod_object({"cpu": 1}, phase="Succeeded"), "1"))
    cache.change("MODIFIED", msgspec.Raw(b'{"metadata": {"uid": "2"}, "spec": 7}'))
    assert cache.all() == []
    cache.change("ADDED", msgspec.Raw(b"{"))
    cache.change("DELETED", msgspec.Raw(b"nonsense"))
    assert cache.all() == []


def test_the_first_list_counts_even_if_it_is_empty() -> None:
    cache: ObjectCache[PodUse] = ObjectCache(read_pod_use)
    version = cache.version
    cache.replace([])
    assert cache.version > version
