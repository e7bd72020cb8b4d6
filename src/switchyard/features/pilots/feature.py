"""The feature pilots, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="pilots",
    commands={
        "Clusters": [
            (
                "pilot",
                "switchyard.features.pilots.cli.pilot",
                "Take nodes of a cluster by one job, as a cluster for a while",
            )
        ]
    },
)
