"""Whose namespace it is: scopes that share a name, namespaces of the cluster, and two settings that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from switchyard.features.kubernetes.agent.cluster_resources_site import ClusterResourcesSite
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.cluster_resources import ClusterResources, ResourceClient
from switchyard.features.kubernetes.model.namespace_objects import NamespaceIndex
from switchyard.model.cluster.namespace_resources import NamespaceEntry
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec
from tests.agent.kubernetes.api_peer import ApiPeer, says


class Index(ResourceClient):
    """In the place of our server."""

    def __init__(self, *entries: NamespaceEntry) -> None:
        self.entries = list(entries)

    def index(self) -> NamespaceIndex:
        return NamespaceIndex("v1", self.entries)

    def report(self, namespaces: list[Any]) -> None:
        pass


def held(tmp_path: Path, entry: NamespaceEntry, pattern: str, **site: Any) -> str:
    peer = ApiPeer(tmp_path, says(403, kind="Status", message="no"))
    try:
        kubernetes = KubernetesSite(namespace=pattern)
        resources = ClusterResources(
            peer.api(),
            ClusterResourcesSite(wait_s=0, **site),
            cluster="alpha",
            namespace_of=kubernetes.namespace_of,
        )
        resources.attach_client(Index(entry), lambda: None)
        resources.note_version("v1")
        resources.run_once(0)
        spec = JobSpec(command=["true"])
        lease = Lease(
            job="J", attempt=1, fence=1, name="", owner="", project=entry.project, domain=entry.domain, spec=spec
        )
        return resources.hold(lease)
    finally:
        peer.close()


PATTERN = "{{ project }}-{{ domain }}"


def test_a_scope_whose_namespace_is_anothers_is_held_for_good(tmp_path: Path) -> None:
    entry = NamespaceEntry("a-b-c", "a", "b-c", "", "the namespace a-b-c is that of a-b in c", is_refused=True)
    assert "is that of a-b in c" in held(tmp_path, entry, PATTERN)


def test_two_settings_that_name_two_namespaces(tmp_path: Path) -> None:
    entry = NamespaceEntry("vision-production", "vision", "production", "", "")
    said = held(tmp_path, entry, "jobs-{{ project }}")
    assert "jobs-vision (kubernetes.namespace)" in said
    assert "vision-production for them (namespace_mapping)" in said
    assert held(tmp_path, entry, PATTERN) == ""
    assert held(tmp_path, entry, "jobs-{{ project }}", namespaces=["other-*"]) == ""  # the site leaves it out


def test_namespaces_of_the_cluster_are_named_literally() -> None:
    assert not ClusterResourcesSite().allows_namespace("kube-system")
    assert not ClusterResourcesSite(namespaces=["kube-*", "def*"]).allows_namespace("default")
    assert ClusterResourcesSite(namespaces=["default"]).allows_namespace("default")
    assert ClusterResourcesSite().allows_namespace("default-development")
