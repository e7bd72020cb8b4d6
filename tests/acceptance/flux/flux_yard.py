"""A server with agents of real Flux instances."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger
from tests.acceptance.stage import Stage
from tests.flux_bed import FluxBed, FluxInstance
from tests.processes import PATIENCE_S
from tests.programs import Agent, start_agent

SITE = {"timeout_s": 5.0, "state_s": 1.0, "settle_s": 3.0, "shell_options": {"cpu-affinity": "off"}}
CORES = 12  # of an instance
END_S = PATIENCE_S


@dataclass
class FluxYard:
    """A server with an agent for each of two instances."""

    stage: Stage
    bed: FluxBed
    agents: dict[str, Agent]
    ledger: Ledger

    def submit(self, cluster: str, then: str = "", **fields: Any) -> str:
        """A job that leaves its line in the ledger, then runs `then`."""
        spec = {"env": self.ledger.env, **fields.pop("spec", {})}
        return self.stage.submit(*self.ledger.command(then), cluster=cluster, spec=spec, **fields)

    def begun(self, cluster: str, then: str = "sleep 600", **fields: Any) -> str:
        job = self.submit(cluster, then, **fields)
        self.stage.until_state(job, State.RUNNING, timeout_s=END_S)
        return job

    def ran_once(self, job: str) -> None:
        ended = self.stage.ended(job, timeout_s=END_S)
        assert (ended["state"], self.ledger.runs()[job]) == (State.SUCCEEDED, 1), ended


def flux_agent(
    stage: Stage, instance: FluxInstance, name: str = "", *, outage: dict[str, float] | None = None, **more: Any
) -> Agent:
    """An agent of the instance. `name`: of the cluster, if not that of the instance; `more`: of the site's section."""
    name = name or instance.spec.name
    flux = {**SITE, "uri": instance.uri, "bin": str(Path(shutil.which("flux") or "").parent), **more}
    file = stage.folder / f"{name}-site.yaml"
    images = [{"match": "lab/*", "run": "host"}]
    file.write_text(
        json.dumps({"flux": flux, "images": images, "outage": outage or {}}), encoding="utf-8"
    )  # JSON is YAML
    extra = ["--config", str(file), "--look-every", "1s"]
    return start_agent(stage.folder, stage.url, name, graph=None, backend="flux", extra=extra)
