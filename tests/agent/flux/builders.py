"""For tests of the Flux backend on real instances: settings with short waits."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from switchyard.agent.backends import Setting
from switchyard.features.flux.agent.backend import FluxBackend
from switchyard.features.flux.agent.flux_site import FluxSite
from switchyard.features.flux.agent.follow.events import FluxJobFacts, JobEvent, apply_event
from tests.flux_bed import FluxInstance
from tests.sites import site_with

Make = Callable[..., FluxBackend]


def a_flux_setting(directory: Path, instance: FluxInstance, **more: Any) -> Setting:
    """For a backend of this instance. `flux` in `more`: settings of that section; the rest are others of the site."""
    # Virtual nodes have processors that the machine does not have.
    options = {"cpu-affinity": "off", "gpu-affinity": "off"}
    waits = {"timeout_s": 20.0, "state_s": 0.05, "settle_s": 1.0, "shell_options": options, **more.pop("flux", {})}
    directory.mkdir(parents=True, exist_ok=True)
    return Setting(
        cluster="alpha",
        directory=directory,
        site=site_with(flux=FluxSite(uri=instance.uri, **waits), **more),
        is_root_allowed=True,
        agent_environment={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )


def facts_of(events: list[JobEvent]) -> FluxJobFacts:
    """The facts of a whole eventlog."""
    return reduce(apply_event, events, FluxJobFacts())
