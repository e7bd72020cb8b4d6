"""The config sections `cluster_resources` and `namespace_mapping`: where templates are, and the platform's values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from switchyard.model.quantity import parse_duration_s
from switchyard.policy.kinds.cluster_resources import RESERVED_KEYS
from switchyard.policy.render import NAMESPACE_TEMPLATE, is_variable, namespace_of
from switchyard.service.rules.cluster_resources import ResourceTemplates, VariableSource


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


class NamespaceMappingSection(Struct, frozen=True, forbid_unknown_fields=True):
    template: str = NAMESPACE_TEMPLATE

    def __post_init__(self) -> None:
        namespace_of(self.template, project="project", domain="domain")


def templates_of(
    resources: ClusterResourcesSection,
    namespaces: NamespaceMappingSection,
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> ResourceTemplates:
    """The two sections as the use case takes them. A relative path begins at the config file's folder."""
    return ResourceTemplates(
        folder=folder / resources.templatePath if resources.templatePath else None,
        platform=resources.platform,
        by_domain=resources.by_domain,
        namespace=namespaces.template,
        environment=environment,
    )


def _mistakes(given: Any, path: str) -> list[str]:
    found: list[str] = []
    for name, source in _joined(given, path, found).items():
        at = f"{path}.{name}"
        if name in RESERVED_KEYS:
            found.append(f"{at}: {name} is set by the server and cannot be given")
        elif not is_variable(name):
            found.append(f"{at}: not a name that a template can use")
        try:
            read = msgspec.convert(source, ValueSource)
        except msgspec.ValidationError as exc:
            found.append(f"{at}: {exc}")
            continue
        if _source(read) is None:
            found.append(f"{at}: give one of value, valueFrom.env, valueFrom.filePath")
    return found


def _joined(given: Any, path: str, mistakes: list[str]) -> dict[str, Any]:
    """One map, from a map or from a list of maps."""
    found: dict[str, Any] = {}
    for part in given if isinstance(given, list) else [given]:
        if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
            mistakes.append(f"{path}: neither a map of names nor a list of such maps")
            continue
        mistakes += [f"{path}.{name}: given twice" for name in part if name in found]
        found |= part
    return found


def _sources(given: Any) -> dict[str, VariableSource]:
    read = {name: _source(msgspec.convert(source, ValueSource)) for name, source in _joined(given, "", []).items()}
    return {name: source for name, source in read.items() if source is not None}


def _source(given: ValueSource) -> VariableSource | None:
    """None: it says nothing, or two things."""
    place = given.valueFrom or ValueFrom()
    if sum(each is not None for each in (given.value, place.env, place.filePath)) != 1:
        return None
    value = str(given.value).lower() if isinstance(given.value, bool) else given.value
    return VariableSource(value=None if value is None else str(value), env=place.env, file=place.filePath)
