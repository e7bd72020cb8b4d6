"""The feature doctor, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="doctor",
    agent_verbs={
        "discover": "switchyard.features.doctor.agent.discover",
        "doctor": "switchyard.features.doctor.agent.doctor",
    },
)
