"""The feature images, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="images",
    config={"images": "switchyard.features.images.server.images_section:ImagesSection"},
    server="switchyard.features.images.server.feature:ImagesFeature",
)
