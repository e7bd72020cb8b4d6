"""Agents of real Slurm clusters, on a server that the tests of one file share. Knows programs and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.bed import Ledger
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S
from tests.programs import Agent, start_agent
from tests.slurm_bed import SlurmBed, SlurmCluster
from tests.slurm_faults import FaultyClients

# Short waits, for clusters whose waits are short. What may or may not have arrived is waited for longer than the latest
# of the late ones takes (tests/slurm_faults.py).
SITE = {"timeout_s": 4.0, "poll_s": 0.3, "state_s": 1.0, "settle_s": 4.0}
END_S = PATIENCE_S


def write_site(stage: Stage, cluster: SlurmCluster, *, clients: Path | None = None, **more: Any) -> Path:
    """The agent's file for a cluster. `slurm` in `more` adds to its section of that name."""
    slurm = {**SITE, "bin": str(clients or cluster.bin), **more.pop("slurm", {})}
    file = stage.folder / f"{cluster.name}-site.yaml"
    file.write_text(json.dumps({"slurm": slurm, **more}), encoding="utf-8")  # JSON is YAML
    return file


def slurm_agent(stage: Stage, cluster: SlurmCluster, *, clients: Path | None = None, **more: Any) -> Agent:
    """An agent of a Slurm cluster that is up; options of the program as `extra`, those of the site as the rest."""
    extra = [
        "--config",
        str(write_site(stage, cluster, clients=clients, **more.pop("site", {}))),
        *more.pop("extra", []),
    ]
    return start_agent(stage.folder, stage.url, cluster.name, graph=None, backend="slurm", extra=extra, **more)


class Yard:
    """A server with an agent for each cluster of a bed; alpha's sbatch can be made to fail."""

    def __init__(self, stage: Stage, slurm: SlurmBed, agents: dict[str, Agent], faulty: FaultyClients) -> None:
        self.stage, self.slurm, self.agents, self.faulty = stage, slurm, agents, faulty
        self.ledger = Ledger(stage.folder)

    def submit(self, cluster: str, then: str = "", *, spec: dict[str, Any] | None = None, **fields: Any) -> str:
        """A job that leaves its line in the ledger, then runs `then`."""
        given = {**(spec or {})}
        given["env"] = {**self.ledger.env, **given.get("env", {})}
        return self.stage.submit(*self.ledger.command(then), cluster=cluster, spec=given, **fields)

    def gate(self, name: str) -> tuple[str, Path]:
        """Shell words that wait for a file to be there, and the file."""
        file = self.stage.folder / f"gate-{name}"
        return f"while [ ! -e {file} ]; do sleep 0.1; done", file

    def native(self, job: str) -> str:
        return str(self.stage.job(job)["native_id"])


@contextmanager
def slurm_yard(folder: Path, bed: SlurmBed, **site: Any) -> Iterator[Yard]:
    with staged(folder) as stage:
        faulty = FaultyClients(folder / "faulty", bed["alpha"])
        agents = {
            "alpha": slurm_agent(stage, bed["alpha"], clients=faulty.bin, site=site),
            "beta": slurm_agent(stage, bed["beta"], site=site),
        }
        try:
            yield Yard(stage, bed, agents, faulty)
        finally:
            for agent in agents.values():
                agent.close()
            for cluster in bed.clusters:
                cluster.heal()
