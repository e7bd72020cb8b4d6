"""The feature Flux, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="flux",
    site={"flux": "switchyard.features.flux.agent.flux_site:FluxSite"},
    agent="switchyard.features.flux.agent.feature:FluxFeature",
)
