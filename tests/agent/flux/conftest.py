"""Fixtures of the tests on real instances: the shared instance, and backends of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.features.flux.agent.backend import FluxBackend
from tests.agent.flux.builders import Make, a_flux_setting
from tests.flux_bed import FluxBed, FluxInstance


@pytest.fixture
def instance(flux: FluxBed) -> FluxInstance:
    return flux["alpha"]


@pytest.fixture
def make(instance: FluxInstance, tmp_path: Path) -> Iterator[Make]:
    """Start backends of the instance, all on one folder."""
    made: list[FluxBackend] = []

    def start(**more: object) -> FluxBackend:
        made.append(FluxBackend(a_flux_setting(tmp_path, instance, **more)))
        return made[-1]

    yield start
    for backend in made:
        backend.close()
    instance.cancel_all()
