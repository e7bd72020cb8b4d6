"""Render the templates of cluster resources for a project and domain. The server itself never calls Kubernetes.

What users see has no contents of Secrets: these go only to the agents of Kubernetes clusters.
"""

from __future__ import annotations

import msgspec

from switchyard.errors import BadRequest, UnknownName
from switchyard.model.cluster.rendering import RenderedFile, Rendering, RenderingChange
from switchyard.model.rules.access import Role
from switchyard.policy.rendered_objects import hide_secrets
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.resource_templates import (
    ResourceTemplates,
    fill_templates,
    platform_values,
    read_templates,
    scope_values,
)
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch
from switchyard.store.rules import renders

MISTAKES_MAX = 50


def render(context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str) -> Rendering:
    """Render the templates of a project and domain, and store the result as the last rendering."""
    rendering = _render(context, templates, actor, project=project, domain=domain)

    def apply(batch: Batch) -> Rendering:
        stored = msgspec.structs.replace(rendering, at_us=batch.now_us)
        body = msgspec.json.encode(stored).decode()
        renders.render_put(batch.tx, project=project, domain=domain, body=body, at_us=batch.now_us)
        record_audit(batch, context, actor, "cluster-resources.render", f"{project}/{domain}", after=stored.values)
        return stored

    return context.committer.call(apply)


def compare_rendering(
    context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str
) -> RenderingChange:
    """Return a rendering made now and the last stored rendering. Stores nothing."""
    rendering = _render(context, templates, actor, project=project, domain=domain)
    with context.database.read() as tx:
        body = renders.render_get(tx, project=project, domain=domain)
    return RenderingChange(rendering, msgspec.json.decode(body, type=Rendering) if body is not None else None)


def _render(context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str) -> Rendering:
    _check_scope(context, actor, project=project, domain=domain)
    texts, policy = read_templates(templates.folder), context.snapshots.policy
    try:
        scope = scope_values(policy, templates, platform_values(templates, domain), project=project, domain=domain)
    except ValueError as exc:
        raise BadRequest(f"{exc}.", next_step="Ask for a project of another name, or for another template.") from exc
    files, mistakes = fill_templates(texts, scope)
    if mistakes:
        mistake_lines = "\n".join(f"  - {mistake}" for mistake in mistakes[:MISTAKES_MAX])
        raise BadRequest(
            f"The templates of {project} in {domain} cannot be filled:\n{mistake_lines}",
            next_step="Give each variable a value (`yard update cluster-resource-attribute`), or correct the template.",
        )
    shown = [RenderedFile(rendered.file, hide_secrets(rendered.text)) for rendered in files]
    return Rendering(project, domain, scope.namespace, shown, dict(scope.origins))


def _check_scope(context: Context, actor: Actor, *, project: str, domain: str) -> None:
    """Require `admin` on an active project: a rendering may contain secrets from files or environment variables."""
    actor.need_project(Role.ADMIN, project)
    domains = context.snapshots.policy.platform.domains
    if domain not in domains:
        raise UnknownName(f"There is no domain {domain!r}.", next_step=f"Known domains: {', '.join(domains)}.")
    entry = context.snapshots.access.projects.get(project)
    if entry is None:
        raise UnknownName(f"There is no project {project!r}.", next_step="`yard project ls` lists the projects.")
    if entry.is_archived:
        raise BadRequest(
            f"The project {project} is archived.",
            next_step=f"`yard project update {project} --activate`.",
        )
