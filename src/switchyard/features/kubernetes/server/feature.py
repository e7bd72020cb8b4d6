"""What Kubernetes adds to a server: the objects of namespaces, rendered from templates and asked for by agents.

The config section `cluster_resources` says where templates are, and the platform's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from switchyard.features.kubernetes.server import cluster_resources
from switchyard.features.kubernetes.service.render_namespaces import NamespaceRendering
from switchyard.features.kubernetes.service.resource_templates import ResourceTemplates, VariableSource
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.policy.kinds.cluster_resources import RESERVED_KEYS
from switchyard.policy.namespace_names import is_variable
from switchyard.sections import section_of
from switchyard.server.config.config import Config, NamespaceMappingSection
from switchyard.server.config.settings import Settings
from switchyard.server.feature import ServerFeature
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.background_loop import BackgroundLoop
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.upkeep.leadership import Leadership

REFRESH_S_MIN = 1.0  # between two reads of the template files
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


class ValueFrom(Struct, frozen=True, forbid_unknown_fields=True):
    env: str | None = None
    filePath: str | None = None


class ValueSource(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a value comes from: said here, from the environment, or from a file."""

    value: str | int | float | bool | None = None
    valueFrom: ValueFrom | None = None


class ClusterResourcesSection(Struct, frozen=True, forbid_unknown_fields=True):
    """`templateData`: the platform's values by name. `customData`: by domain, then by name. Both may be written as a
    list of maps, as Helm charts do."""

    templatePath: str = ""
    templateData: Any = {}
    customData: Any = {}
    refreshInterval: str | int = "1m"

    def __post_init__(self) -> None:
        mistakes = [*_mistakes(self.templateData, "templateData")]
        for domain, given in _joined(self.customData, "customData", mistakes).items():
            mistakes += _mistakes(given, f"customData.{domain}")
        try:
            parse_duration_s(self.refreshInterval)
        except ValueError as exc:
            mistakes.append(f"refreshInterval: {exc}")
        if mistakes:
            raise ValueError("; ".join(mistakes))

    @property
    def platform(self) -> dict[str, VariableSource]:
        return _sources(self.templateData)

    @property
    def by_domain(self) -> dict[str, dict[str, VariableSource]]:
        return {domain: _sources(given) for domain, given in _joined(self.customData, "", []).items()}


def cluster_resources_section(config: Config) -> ClusterResourcesSection:
    return section_of(config, "cluster_resources", ClusterResourcesSection)


def templates_of(
    section: ClusterResourcesSection,
    namespaces: NamespaceMappingSection,
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> ResourceTemplates:
    """Make the templates of the two sections. A relative path is relative to the config file's folder."""
    return ResourceTemplates(
        folder=folder / section.templatePath if section.templatePath else None,
        platform=section.platform,
        by_domain=section.by_domain,
        namespace=namespaces.template,
        environment=environment,
        refresh_s=max(REFRESH_S_MIN, parse_duration_s(section.refreshInterval)),
    )


def template_mistakes(config: Config, *, folder: Path) -> list[str]:
    """What is wrong with the section in this folder and with these domains."""
    templates = templates_of(cluster_resources_section(config), config.namespace_mapping, folder=folder, environment={})
    mistakes = []
    if templates.folder is not None and not templates.folder.is_dir():
        mistakes.append(f"cluster_resources.templatePath: there is no folder {templates.folder}")
    mistakes += [
        f"cluster_resources.customData.{domain}: there is no such domain"
        for domain in templates.by_domain
        if domain not in config.domain_names
    ]
    return mistakes


def _mistakes(section: Any, path: str) -> list[str]:
    mistakes: list[str] = []
    for name, source in _joined(section, path, mistakes).items():
        at = f"{path}.{name}"
        if name in RESERVED_KEYS:
            mistakes.append(f"{at}: {name} is set by the server and cannot be given")
        elif not is_variable(name):
            mistakes.append(f"{at}: not a name that a template can use")
        try:
            read = msgspec.convert(source, ValueSource)
        except msgspec.ValidationError as exc:
            mistakes.append(f"{at}: {exc}")
            continue
        if _source(read) is None:
            mistakes.append(f"{at}: give one of value, valueFrom.env, valueFrom.filePath")
    return mistakes


def _joined(section: Any, path: str, mistakes: list[str]) -> dict[str, Any]:
    """Join a list of maps to one map."""
    joined: dict[str, Any] = {}
    for part in section if isinstance(section, list) else [section]:
        if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
            mistakes.append(f"{path}: neither a map of names nor a list of such maps")
            continue
        mistakes += [f"{path}.{name}: given twice" for name in part if name in joined]
        joined |= part
    return joined


def _sources(section: Any) -> dict[str, VariableSource]:
    read = {name: _source(msgspec.convert(source, ValueSource)) for name, source in _joined(section, "", []).items()}
    return {name: source for name, source in read.items() if source is not None}


def _source(source: ValueSource) -> VariableSource | None:
    """None if it has no value, or more than one."""
    place = source.valueFrom or ValueFrom()
    if sum(value is not None for value in (source.value, place.env, place.filePath)) != 1:
        return None
    value = str(source.value).lower() if isinstance(source.value, bool) else source.value
    return VariableSource(value=None if value is None else str(value), env=place.env, file=place.filePath)
