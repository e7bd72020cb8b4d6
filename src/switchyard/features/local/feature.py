"""The feature of jobs on the agent's machine, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(name="local", agent="switchyard.features.local.agent.feature:LocalFeature")
