"""What the feature images adds to a server: requests are prepared by it before they are admitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from switchyard.features.images.server.images_section import images_mistakes, images_section, listed_registries
from switchyard.features.images.service.pinning import ImagePinning
from switchyard.server.config.config import Config
from switchyard.server.config.settings import Settings
from switchyard.server.feature import ServerFeature
from switchyard.service.submit.preparation import RequestPreparers


class ImagesFeature(ServerFeature):
    def settings(self, settings: Settings) -> Sequence[Any]:
        if not images_section(settings.config).registries:
            return ()
        registries = listed_registries(settings.config, folder=settings.config_folder)
        return (RequestPreparers((ImagePinning(registries),)),)

    def mistakes(self, config: Config, *, folder: Path) -> Sequence[str]:
        return images_mistakes(config, folder=folder)
