"""The feature demo, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="demo",
    commands={
        "Server": [
            ("demo", "switchyard.features.demo.cli.demo", "Start a server and three clusters here, and run 14 jobs")
        ]
    },
)
