"""Two real Kubernetes clusters under random faults for ten minutes: nothing lost, nothing twice, nothing stuck.

KUBERNETES_SOAK_S sets another time, ORDEAL_SEED other faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.kubernetes.kubernetes_ordeal import (
    API_FAULTS,
    DEEP_FAULTS,
    PROGRAM_FAULTS,
    OrdealYard,
    kubernetes_agents,
    undergo,
)
from tests.kube_bed import KubernetesBed
from tests.processes import end_strays
from tests.programs import start_server

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes-soak")]

FAULTS_S = float(os.environ.get("KUBERNETES_SOAK_S", "600"))
PAUSE_S = 0.8  # between two submits: two control planes share the cores with the pods
SETTLE_S = 1200.0
SEED = int(os.environ.get("ORDEAL_SEED", "18"))


@pytest.fixture
def yard(two_kubernetes: KubernetesBed, tmp_path: Path) -> Iterator[OrdealYard]:
    """A server with an agent for each of the two clusters, which are whole again at the end."""
    beds = [two_kubernetes["alpha"], two_kubernetes["beta"]]
    with ExitStack() as stack:
        stack.callback(end_strays, tmp_path)
        server = stack.enter_context(start_server(tmp_path))
        for cluster in beds:
            stack.callback(cluster.heal)
        agents = stack.enter_context(kubernetes_agents(tmp_path, server, beds))
        yield OrdealYard(tmp_path, server, agents, dict(zip(agents, beds, strict=True)))


@pytest.mark.timeout(3600)
def test_ten_minutes_of_faults_on_two_clusters(yard: OrdealYard) -> None:
    """A command may fail if a node whose daemons were killed does not know whether it began, and says so."""
    faults = {**PROGRAM_FAULTS, **API_FAULTS, **DEEP_FAULTS}
    outcome = undergo(yard, faults, seed=SEED, faults_s=FAULTS_S, pause_s=PAUSE_S, settle_s=SETTLE_S)
    assert outcome.wrong == {}, outcome.text()
    assert outcome.runs_by_cluster.keys() == yard.agents.keys(), "each cluster ran some"
