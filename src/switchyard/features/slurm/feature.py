"""The feature Slurm, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="slurm",
    site={"slurm": "switchyard.features.slurm.agent.slurm_site:SlurmSite"},
    agent="switchyard.features.slurm.agent.feature:SlurmFeature",
)
