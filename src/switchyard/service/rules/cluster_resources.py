"""Cluster resources: read the templates and the values for them, fill, keep what was shown. It knows no Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from switchyard.errors import BadRequest, UnknownName
from switchyard.model.access import Role
from switchyard.model.rendering import RenderedFile, Rendering, RenderingChange
from switchyard.policy.kinds.cluster_resources import RESERVED_KEYS, ClusterResourcesKind
from switchyard.policy.render import NAMESPACE_TEMPLATE, FilledTemplate, fill_template, namespace_of
from switchyard.service.committer import Batch
from switchyard.service.context import Context, record_audit
from switchyard.service.rights import Actor
from switchyard.store import renders

TEMPLATES_MAX = 200  # files; a namespace gets a handful
TEMPLATE_BYTES_MAX = 2**20  # the most that Kubernetes takes as one object is somewhat more
VALUE_BYTES_MAX = 2**16  # from a file: a certificate chain, not data
MISTAKES_MAX = 50
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class VariableSource:
    """Where the platform's value of a variable comes from: exactly one of these."""

    value: str | None = None
    env: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceTemplates:
    """What the operator configured. Files and the values in them are read at each rendering."""

    folder: Path | None = None
    platform: Mapping[str, VariableSource] = field(default_factory=dict)
    by_domain: Mapping[str, Mapping[str, VariableSource]] = field(default_factory=dict)
    namespace: str = NAMESPACE_TEMPLATE
    environment: Mapping[str, str] = field(default_factory=dict)


def render(context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str) -> Rendering:
    """Fill the templates of a project and domain, and keep the result as the last one."""
    shown = _render(context, templates, actor, project=project, domain=domain)

    def apply(batch: Batch) -> Rendering:
        kept = msgspec.structs.replace(shown, at_us=batch.now_us)
        body = msgspec.json.encode(kept).decode()
        renders.render_put(batch.tx, project=project, domain=domain, body=body, at_us=batch.now_us)
        record_audit(batch, context, actor.name, "cluster-resources.render", f"{project}/{domain}", after=kept.values)
        return kept

    return context.committer.call(apply)


def compare_rendering(
    context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str
) -> RenderingChange:
    """What a rendering would be now, beside the last one. Nothing is kept."""
    shown = _render(context, templates, actor, project=project, domain=domain)
    with context.database.read() as tx:
        body = renders.render_get(tx, project=project, domain=domain)
    return RenderingChange(shown, msgspec.json.decode(body, type=Rendering) if body is not None else None)


def _render(context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str) -> Rendering:
    _check_scope(context, actor, project=project, domain=domain)
    values, origins, unread = platform_values(templates, domain)
    for name, (value, origin) in _attribute_values(context, project=project, domain=domain).items():
        values[name], origins[name] = value, origin
        unread.pop(name, None)
    try:
        namespace = namespace_of(templates.namespace, project=project, domain=domain)
    except ValueError as exc:
        raise BadRequest(f"{exc}.", next_step="Ask for a project of another name, or for another template.") from exc
    # Last: whatever a row says, these are ours.
    values |= {"namespace": namespace, "project": project, "domain": domain}
    origins |= dict.fromkeys(RESERVED_KEYS, "the scope")
    files, mistakes = [], list(unread.values())
    for path in template_files(templates.folder):
        try:
            filled = fill_template(_text_of(path, TEMPLATE_BYTES_MAX), values, where=path.name)
        except (OSError, ValueError) as exc:
            filled = FilledTemplate(mistakes=(f"{path.name}: {exc}",))
        mistakes += filled.mistakes
        files.append(RenderedFile(path.name, filled.text))
    if mistakes:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes[:MISTAKES_MAX])
        raise BadRequest(
            f"The templates of {project} in {domain} cannot be filled:\n{listed}",
            next_step="Give each variable a value (`yard update cluster-resource-attribute`), or correct the template.",
        )
    return Rendering(project, domain, namespace, files, dict(sorted(origins.items())))


def _check_scope(context: Context, actor: Actor, *, project: str, domain: str) -> None:
    """A filled template may hold what a file or the environment gave: it is for the project's administrators."""
    actor.need_project(Role.ADMIN, project)
    domains = context.snapshots.policy.platform.domains
    if domain not in domains:
        raise UnknownName(f"There is no domain {domain!r}.", next_step=f"Known domains: {', '.join(domains)}.")
    found = context.snapshots.access.projects.get(project)
    if found is None:
        raise UnknownName(f"There is no project {project!r}.", next_step="`yard project ls` lists the projects.")
    if found.is_archived:
        raise BadRequest(
            f"The project {project} is archived.",
            next_step=f"`yard project update {project} --activate`.",
        )


def _attribute_values(context: Context, *, project: str, domain: str) -> dict[str, tuple[str, str]]:
    """What the attribute rows say: a value and the row it is from, by name."""
    kind = ClusterResourcesKind()
    found = context.snapshots.policy.effective((domain, project, "", "")).fields(kind)
    return {path.partition(".")[2]: (entry.value, str(entry.source)) for path, entry in found.items()}


def platform_values(templates: ResourceTemplates, domain: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The configured values that hold in a domain, where each is from, and why others could not be read; by name."""
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
                values[name], origins[name] = _value(source, templates.environment), origin
            except (OSError, ValueError) as exc:
                mistakes[name] = f"{name} ({origin}): {exc}"
    return values, origins, mistakes


def _value(source: VariableSource, environment: Mapping[str, str]) -> str:
    """The value as text. Empty is a mistake: it is what a variable that nobody set looks like."""
    if source.value is not None:
        found, what = source.value, "its value"
    elif source.env is not None:
        found, what = environment.get(source.env, ""), f"the environment variable {source.env}"
    else:
        assert source.file is not None
        # The newline that every editor ends a file with is none of the value.
        found, what = _text_of(Path(source.file), VALUE_BYTES_MAX).removesuffix("\n"), f"the file {source.file}"
    if not found:
        raise ValueError(f"{what} is unset or empty")
    return found


def template_files(folder: Path | None) -> list[Path]:
    """The templates, by name: `aa_namespace.yaml` comes before what goes into the namespace."""
    if folder is None:
        raise BadRequest(
            "This server has no templates.", next_step="Set cluster_resources.templatePath in the server's config."
        )
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError as exc:
        raise BadRequest(
            f"The folder of templates cannot be read: {exc}", next_step="Look at cluster_resources.templatePath."
        ) from exc
    if len(found) > TEMPLATES_MAX:
        raise BadRequest(f"{folder} has {len(found)} templates; the most is {TEMPLATES_MAX}.")
    return found


def _text_of(path: Path, bytes_max: int) -> str:
    with path.open("rb") as opened:
        found = opened.read(bytes_max + 1)
    if len(found) > bytes_max:
        raise ValueError(f"the file {path} is over {bytes_max} bytes")
    return found.decode()
