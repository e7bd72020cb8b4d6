"""Settings of the Slurm backend for tests: short waits, everything else as it comes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from switchyard.agent.backends import Setting
from switchyard.agent.site import Site, SlurmSite
from tests.slurm_bed import SlurmCluster


def a_slurm_setting(directory: Path, cluster: SlurmCluster, *, clients: Path | None = None, **more: Any) -> Setting:
    """For a backend of this cluster. `slurm` in `more`: settings of that section; the rest are others of the site."""
    waits = {"timeout_s": 8.0, "poll_s": 0.05, "state_s": 0.05, "settle_s": 1.0, **more.pop("slurm", {})}
    directory.mkdir(parents=True, exist_ok=True)
    return Setting(
        cluster="alpha",
        directory=directory,
        site=Site(slurm=SlurmSite(bin=str(clients or cluster.bin), **waits), **more),
        environment={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )
