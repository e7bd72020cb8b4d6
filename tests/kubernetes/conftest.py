"""Fixtures of the tests on a real Kubernetes cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import KubernetesAgent, MakeAgent


@pytest.fixture
def cluster(kubernetes: KubernetesBed) -> KubernetesCluster:
    return kubernetes["alpha"]


@pytest.fixture
def harmed_cluster(cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """For tests that harm the cluster."""
    yield cluster
    cluster.heal()


@pytest.fixture
def namespace(cluster: KubernetesCluster) -> Iterator[str]:
    """A namespace of the test's own."""
    name = cluster.create_namespace(f"test-{os.urandom(4).hex()}")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.fixture
def make_agent(tmp_path: Path, cluster: KubernetesCluster, namespace: str) -> Iterator[MakeAgent]:
    """Agents with one folder: each is the next start of the one before."""
    made: list[KubernetesAgent] = []

    def make(**more: Any) -> KubernetesAgent:
        made.append(KubernetesAgent(tmp_path, cluster, namespace, **more))
        return made[-1]

    yield make
    for agent in made:
        agent.kill()


@pytest.fixture
def agent(make_agent: MakeAgent) -> KubernetesAgent:
    return make_agent()
