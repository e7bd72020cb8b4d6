"""The operator's templates of cluster resources: their files, the values of a project and domain, and the rendering."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from switchyard.errors import BadRequest
from switchyard.features.kubernetes.model.rendering import RenderedFile
from switchyard.features.kubernetes.policy.fill_template import fill_template
from switchyard.policy.kinds.cluster_resources import RESERVED_KEYS, ClusterResourcesKind
from switchyard.policy.namespace_names import NAMESPACE_TEMPLATE, namespace_of
from switchyard.policy.resolve import Policy

TEMPLATES_MAX = 200  # files; a namespace usually has a handful
TEMPLATE_BYTES_MAX = 2**20  # the limit of Kubernetes for one object is slightly higher
VALUE_BYTES_MAX = 2**16  # from a file: a certificate chain, not data
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class VariableSource:
    """The source of a variable's platform value. Exactly one field is set."""

    value: str | None = None
    env: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceTemplates:
    """The operator's configuration. Template and value files are read again for each rendering."""

    folder: Path | None = None
    platform: Mapping[str, VariableSource] = field(default_factory=dict)
    by_domain: Mapping[str, Mapping[str, VariableSource]] = field(default_factory=dict)
    namespace: str = NAMESPACE_TEMPLATE
    environment: Mapping[str, str] = field(default_factory=dict)
    refresh_s: float = 60.0  # how often the leader reads the files again


@dataclass(frozen=True, slots=True)
class TemplateTexts:
    """The templates as they were read, by file name. `mistakes`: files that cannot be read."""

    texts: tuple[tuple[str, str], ...]
    mistakes: tuple[str, ...] = ()

    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode((self.texts, self.mistakes))).hexdigest()


class PlatformValues(NamedTuple):
    """The values that the config has for one domain, their origins, and the errors of those that cannot be read."""

    values: Mapping[str, str]
    origins: Mapping[str, str]
    mistakes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ScopeValues:
    """All values of a project in a domain, by variable."""

    namespace: str
    values: Mapping[str, str]
    origins: Mapping[str, str]
    mistakes: tuple[str, ...] = ()

    def digest(self, templates: str) -> str:
        """Identify everything that a rendering is made from. `templates`: the digest of their texts."""
        inputs = (templates, sorted(self.values.items()), self.mistakes)
        return hashlib.sha256(msgspec.json.encode(inputs)).hexdigest()


def read_templates(folder: Path | None) -> TemplateTexts:
    """Read the templates sorted by name. Raises BadRequest if the folder is missing."""
    texts: list[tuple[str, str]] = []
    mistakes: list[str] = []
    for path in _template_files(folder):
        try:
            texts.append((path.name, _read_text(path, TEMPLATE_BYTES_MAX)))
        except (OSError, ValueError) as exc:
            mistakes.append(f"{path.name}: {exc}")
    return TemplateTexts(tuple(texts), tuple(mistakes))


def fill_templates(templates: TemplateTexts, scope: ScopeValues) -> tuple[list[RenderedFile], list[str]]:
    """Return the rendered files and all mistakes. With a mistake, the files are not to be used."""
    files, mistakes = [], [*scope.mistakes, *templates.mistakes]
    for name, text in templates.texts:
        filled = fill_template(text, scope.values, where=name)
        mistakes += filled.mistakes
        files.append(RenderedFile(name, filled.text))
    return files, mistakes


def scope_values(
    policy: Policy, templates: ResourceTemplates, platform: PlatformValues, *, project: str, domain: str
) -> ScopeValues:
    """Return the values of a project in a domain. Raises ValueError if its namespace has a name that cannot be."""
    values, origins, unread = dict(platform.values), dict(platform.origins), dict(platform.mistakes)
    fields = policy.effective((domain, project, "", "")).fields(ClusterResourcesKind())
    for path, entry in fields.items():
        name = path.partition(".")[2]
        values[name], origins[name] = entry.value, str(entry.source)
        unread.pop(name, None)
    namespace = namespace_of(templates.namespace, project=project, domain=domain)
    # Set reserved keys last, so that no attribute row can override them.
    values |= {"namespace": namespace, "project": project, "domain": domain}
    origins |= dict.fromkeys(RESERVED_KEYS, "the scope")
    return ScopeValues(namespace, values, dict(sorted(origins.items())), tuple(unread.values()))


def platform_values(templates: ResourceTemplates, domain: str) -> PlatformValues:
    """Read the values that the config has for a domain."""
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    mistakes: dict[str, str] = {}
    for sources, origin in (
        (templates.platform, "platform config"),
        (templates.by_domain.get(domain, {}), f"platform config, domain {domain}"),
    ):
        for name, source in sources.items():
            mistakes.pop(name, None)
            try:
                values[name], origins[name] = _read_value(source, templates.environment), origin
            except (OSError, ValueError) as exc:
                mistakes[name] = f"{name} ({origin}): {exc}"
    return PlatformValues(values, origins, mistakes)


def _read_value(source: VariableSource, environment: Mapping[str, str]) -> str:
    """Return the value as text. An empty value is an error, because an unset variable also reads as empty."""
    if source.value is not None:
        value, origin = source.value, "its value"
    elif source.env is not None:
        value, origin = environment.get(source.env, ""), f"the environment variable {source.env}"
    else:
        assert source.file is not None
        # Editors end a file with a newline; it is not part of the value.
        value, origin = _read_text(Path(source.file), VALUE_BYTES_MAX).removesuffix("\n"), f"the file {source.file}"
    if not value:
        raise ValueError(f"{origin} is unset or empty")
    return value


def _template_files(folder: Path | None) -> list[Path]:
    """Return the templates sorted by name, so that `aa_namespace.yaml` precedes the objects in the namespace."""
    if folder is None:
        raise BadRequest(
            "This server has no templates.", next_step="Set cluster_resources.templatePath in the server's config."
        )
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError as exc:
        raise BadRequest(
            f"The folder of templates cannot be read: {exc}", next_step="Check cluster_resources.templatePath."
        ) from exc
    if len(paths) > TEMPLATES_MAX:
        raise BadRequest(f"{folder} has {len(paths)} templates; the most is {TEMPLATES_MAX}.")
    return paths


def _read_text(path: Path, bytes_max: int) -> str:
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"the file {path} is over {bytes_max} bytes")
    return content.decode()
