"""What Kubernetes adds to a server: the objects of namespaces, rendered from templates and asked for by agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from switchyard.features.kubernetes.server import cluster_resources
from switchyard.features.kubernetes.server.cluster_resources_section import (
    cluster_resources_section,
    template_mistakes,
    templates_of,
)
from switchyard.features.kubernetes.service.render_namespaces import NamespaceRendering
from switchyard.features.kubernetes.service.resource_templates import ResourceTemplates
from switchyard.server.config.config import Config
from switchyard.server.config.settings import Settings
from switchyard.server.feature import ServerFeature
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.upkeep.leadership import Leadership

NAMESPACES_PAUSE_S = 1.0  # between two looks whether templates or their values changed

log = structlog.get_logger()


class KubernetesServer(ServerFeature):
    def endpoints(self) -> Sequence[Endpoint]:
        return cluster_resources.ENDPOINTS

    def settings(self, settings: Settings) -> Sequence[Any]:
        section, namespaces = cluster_resources_section(settings.config), settings.config.namespace_mapping
        folder, environment = settings.config_folder, settings.environment
        return (templates_of(section, namespaces, folder=folder, environment=environment),)

    def mistakes(self, config: Config, *, folder: Path) -> Sequence[str]:
        return template_mistakes(config, folder=folder)

    def loops(self, server: ServerRuntime, leadership: Leadership) -> Sequence[BackgroundLoop]:
        rendering = NamespaceRendering(server.context.setting(ResourceTemplates))

        async def render() -> None:
            if leadership.epoch is not None:
                changed = await server.workers.in_file_thread(rendering.go, server.context, leadership)
                if changed:
                    log.info("namespaces rendered", changed=changed)

        return (BackgroundLoop("namespaces", render, NAMESPACES_PAUSE_S),)
