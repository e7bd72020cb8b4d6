"""The feature dashboard, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(name="dashboard", server="switchyard.features.dashboard.server.feature:DashboardFeature")
