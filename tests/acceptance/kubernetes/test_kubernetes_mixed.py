"""Kubernetes, Slurm and a local cluster under one server, with faults of all of them: each command runs once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.kubernetes.kubernetes_ordeal import (
    API_FAULTS,
    PROGRAM_FAULTS,
    SLURM_FAULTS,
    OrdealYard,
    kubernetes_agents,
    undergo,
)
from tests.acceptance.slurm.slurm_stage import SITE
from tests.acceptance.stage import graph
from tests.kube_bed import KubernetesBed
from tests.processes import end_strays
from tests.programs import start_agent, start_server
from tests.slurm_bed import SlurmBed
from tests.soak import SOAKED

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes-mixed")]

PAUSE_S = 0.5  # between two submits: about as much as two cores can run beside the daemons
SETTLE_S = 600.0
SEED = int(os.environ.get("ORDEAL_SEED", "17"))


@pytest.fixture
def yard(kubernetes: KubernetesBed, slurm: SlurmBed, tmp_path: Path) -> Iterator[OrdealYard]:
    """A server with three agents. The clusters are whole again at the end."""
    sigma = slurm["alpha"]
    site = tmp_path / "sigma-site.yaml"
    site.write_text(json.dumps({"slurm": {**SITE, "bin": str(sigma.bin)}}), encoding="utf-8")
    with ExitStack() as stack:
        stack.callback(end_strays, tmp_path)
        server = stack.enter_context(start_server(tmp_path))
        stack.callback(sigma.heal)
        stack.callback(kubernetes["alpha"].heal)
        agents = stack.enter_context(kubernetes_agents(tmp_path, server, [kubernetes["alpha"]]))
        clusters = dict(zip(agents, [kubernetes["alpha"]], strict=True))
        extra = ["--config", str(site)]
        slurm_agent = start_agent(tmp_path, server.url, "slurm", graph=None, backend="slurm", extra=extra)
        local_agent = start_agent(tmp_path, server.url, "local", graph=graph(4))
        for agent in (slurm_agent, local_agent):
            agents[agent.cluster] = stack.enter_context(agent)
        yield OrdealYard(tmp_path, server, agents, clusters, sigma)


# The minute can wait: it only repeats the faults that happen once here, in other orders.
@pytest.mark.parametrize("faults_s", [0.0, SOAKED(60.0)], ids=["once", "a-minute"])
@pytest.mark.timeout(1200)
def test_faults_on_kubernetes_slurm_and_a_local_cluster(yard: OrdealYard, faults_s: float) -> None:
    faults = {**PROGRAM_FAULTS, **API_FAULTS, **SLURM_FAULTS}
    outcome = undergo(yard, faults, seed=SEED, faults_s=faults_s, pause_s=PAUSE_S, settle_s=SETTLE_S)
    assert outcome.wrong == {}, outcome.text()
    assert outcome.in_doubt == [], "no daemon of a node was harmed"
    assert outcome.runs_by_cluster.keys() == yard.agents.keys(), "each cluster ran some"
