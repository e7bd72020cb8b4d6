"""The feature Rainbow, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="rainbow",
    config={"rainbow": "switchyard.features.rainbow.server.rainbow_section:RainbowSection"},
    server="switchyard.features.rainbow.server.feature:RainbowFeature",
)
