"""Objects of namespaces: hand them to the agents of Kubernetes clusters, store their reports, and show the state.

People may also render the templates of a project and domain. What they see has no contents of Secrets: these go only
to the agents of Kubernetes clusters. The server itself never calls Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct

from switchyard.errors import BadRequest, Denied, NotFound, UnknownName
from switchyard.features.kubernetes.model.namespace_objects import (
    ClusterObject,
    NamespaceIndex,
    NamespaceObjects,
    NamespaceReport,
    ObjectState,
    ObjectStatus,
    ResourceReport,
)
from switchyard.features.kubernetes.model.rendering import RenderedFile, Rendering, RenderingChange
from switchyard.features.kubernetes.policy.rendered_objects import hide_secrets
from switchyard.features.kubernetes.service.resource_templates import (
    ResourceTemplates,
    fill_templates,
    platform_values,
    read_templates,
    scope_values,
)
from switchyard.features.kubernetes.store import namespace_rows
from switchyard.features.kubernetes.store.namespace_rows import NamespaceReportRow
from switchyard.model.cluster.namespace_resources import BACKEND, NamespaceEntry, serves_namespace
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.access import Role
from switchyard.model.wire.api import Page
from switchyard.route.member import Member
from switchyard.service.core.agents.fleet import AgentEntry, ClusterEntry
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context
from switchyard.service.core.resource_set import version_for_agent
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch

CURSOR_DIGITS_MAX = 10  # of the place of an object: a report has far fewer
TEMPLATES = "templates"  # stands in the place of an object's name where nothing could be rendered
NOT_REPORTED = "the cluster's agent has not reported on it yet"
OUTDATED = "the agent has not applied the last rendering yet"
NOT_WANTED = "the project is archived, or the domain is gone"
SERVES_NONE = "the cluster serves no namespaces: a platform administrator runs `yard cluster edit {} --namespaces '*'`"
MISTAKES_MAX = 50


class _StoredStatus(Struct, frozen=True, omit_defaults=True):
    """An object's state as it is stored: with a time instead of an age."""

    name: str
    state: ObjectState
    reason: str = ""
    drift: str = ""
    drift_us: int | None = None


def namespace_index(context: Context, agent: AgentEntry) -> NamespaceIndex:
    row = _serving_cluster(context, agent)
    resources = context.snapshots.resources
    with context.database.read() as tx:
        reported = namespace_rows.report_namespaces(tx, [agent.cluster_id])
    served = [entry for entry in resources.entries if serves_namespace(row.namespaces, entry.namespace)]
    unwanted = reported - {entry.namespace for entry in served}
    return NamespaceIndex(version_for_agent(resources, row, agent), served, sorted(unwanted))


def namespace_objects(context: Context, agent: AgentEntry, namespace: str) -> NamespaceObjects:
    """Return the objects of a namespace that the agent's cluster serves, with the contents of Secrets."""
    patterns = _serving_cluster(context, agent).namespaces
    entry = context.snapshots.resources.by_namespace.get(namespace) if serves_namespace(patterns, namespace) else None
    body = None
    if entry is not None:
        with context.database.read() as tx:
            body = namespace_rows.namespace_body(tx, project=entry.project, domain=entry.domain)
    if body is None or not body[0]:
        raise NotFound(
            f"There are no objects for the namespace {namespace!r}, or the cluster does not serve it.",
            next_step="`yard cluster show NAME` lists the namespaces that a cluster serves.",
        )
    return NamespaceObjects(namespace, body[0], Raw(body[1].encode()))


def take_report(context: Context, agent: AgentEntry, report: ResourceReport) -> None:
    """Store an agent's report. Namespaces that nobody asked for are ignored, so that reports stay bounded."""
    patterns = _serving_cluster(context, agent).namespaces
    wanted = {name for name in context.snapshots.resources.by_namespace if serves_namespace(patterns, name)}

    def apply(batch: Batch) -> None:
        known = wanted | namespace_rows.report_namespaces(batch.tx, [agent.cluster_id])
        rows = [
            _report_row(agent, namespace, batch.now_us)
            for namespace in report.namespaces
            if namespace.objects and namespace.namespace in known
        ]
        namespace_rows.report_put(batch.tx, rows)
        gone = [namespace.namespace for namespace in report.namespaces if not namespace.objects]
        if gone:
            namespace_rows.report_delete(batch.tx, agent.cluster_id, gone)

    context.committer.call(apply)


def _serving_cluster(context: Context, agent: AgentEntry) -> ClusterEntry:
    """Return the agent's cluster. Raises Denied if it serves no namespaces."""
    if agent.backend != BACKEND:
        raise Denied(f"Only agents of Kubernetes clusters have namespaces; this agent's backend is {agent.backend}.")
    row = context.snapshots.fleet.rows.get(agent.cluster_id)
    if row is None or not row.namespaces:
        name = row.name if row is not None else "of this agent"
        raise Denied(
            f"The cluster {name} serves no namespaces.",
            next_step=f"A platform administrator says which it serves: `yard cluster edit {name} --namespaces '*'`.",
        )
    return row


def _report_row(agent: AgentEntry, report: NamespaceReport, now_us: int) -> NamespaceReportRow:
    body = msgspec.json.encode([_stored(status, now_us) for status in report.objects]).decode()
    return NamespaceReportRow(agent.cluster_id, report.namespace, report.digest, body, now_us)


def _stored(status: ObjectStatus, now_us: int) -> _StoredStatus:
    drift_us = None if status.drift_ago_s is None else now_us - status.drift_ago_s * 1_000_000
    return _StoredStatus(status.name, status.state, status.reason, status.drift, drift_us)


def object_states(
    context: Context,
    actor: Actor,
    *,
    project: str | None = None,
    domain: str | None = None,
    cluster: str | None = None,
    is_problem: bool = False,
    after: str = "",
    limit: int,
) -> Page[ClusterObject]:
    """Return the state of objects by namespace and cluster: those of projects that the actor administers.

    `after`: where the page begins, as the page before says. `is_problem`: without applied objects.
    """
    first_pair, first_number = _read_cursor(after)
    if project is not None:
        actor.need_project(Role.ADMIN, project)
    members = _members(context, actor, cluster)
    entries = _entries(context, actor, project, domain)
    items: list[ClusterObject] = []
    with context.database.read() as tx:
        if actor.is_platform_admin and project is None and domain is None and members:
            reported = namespace_rows.report_namespaces(tx, [member.id for member in members])
            entries |= {name: [] for name in reported - context.snapshots.resources.by_namespace.keys()}
        pairs = [
            (namespace, member)
            for namespace in sorted(entries)
            for member in members
            if (namespace, member.name) >= first_pair
        ]
        for start in range(0, len(pairs), limit):
            part = pairs[start : start + limit]
            rows = namespace_rows.report_list(
                tx, {member.id for _, member in part}, {namespace for namespace, _ in part}
            )
            reports = {(row.namespace, row.cluster_id): row for row in rows}
            for namespace, member in part:
                served, report = _patterns_of(context, member), reports.get((namespace, member.id))
                if report is None and served and not serves_namespace(served, namespace):
                    continue
                states = _states(namespace, member, entries[namespace], report, serves_none=not served)
                begin = first_number if (namespace, member.name) == first_pair else 0
                for number, state in enumerate(states):
                    if number < begin or (is_problem and state.state is ObjectState.APPLIED):
                        continue
                    if len(items) == limit:
                        return Page(items, f"{namespace}/{member.name}/{number}")
                    items.append(state)
    return Page(items)


def _patterns_of(context: Context, member: Member) -> tuple[str, ...]:
    """Patterns of the namespaces that a cluster serves."""
    row = context.snapshots.fleet.rows.get(member.id)
    return row.namespaces if row is not None else ()


def _read_cursor(text: str) -> tuple[tuple[str, str], int]:
    """Namespace and cluster of the next object, and its place among their objects."""
    pair, _, number = text.rpartition("/")
    namespace, _, cluster = pair.rpartition("/")
    return (namespace, cluster), int(number) if len(number) < CURSOR_DIGITS_MAX and number.isdecimal() else 0


def _members(context: Context, actor: Actor, cluster: str | None) -> list[Member]:
    """The Kubernetes clusters that the actor may see, by name."""
    if cluster is not None:
        return [visible_cluster(context, actor, cluster)]
    world = context.snapshots.world
    hidden = actor.hidden_clusters(world)
    members = (member for member in world.by_name.values() if BACKEND in member.backends)
    return sorted((member for member in members if member.id not in hidden), key=lambda member: member.name)


def _entries(
    context: Context, actor: Actor, project: str | None, domain: str | None
) -> dict[str, list[NamespaceEntry]]:
    """The namespaces of projects that the actor administers. Several scopes may share one."""
    entries: dict[str, list[NamespaceEntry]] = {}
    for entry in context.snapshots.resources.entries:
        is_asked = project in (None, entry.project) and domain in (None, entry.domain)
        if is_asked and actor.may_project(Role.ADMIN, entry.project):
            entries.setdefault(entry.namespace or f"{entry.project}-{entry.domain}", []).append(entry)
    return entries


def _states(
    namespace: str,
    member: Member,
    entries: list[NamespaceEntry],
    report: NamespaceReportRow | None,
    *,
    serves_none: bool,
) -> Iterator[ClusterObject]:
    """The objects of one namespace on one cluster."""
    at_us = report.at_us if report is not None else None
    for entry in entries:
        if entry.mistake:
            yield ClusterObject(
                member.name,
                namespace,
                TEMPLATES,
                ObjectState.FAILED,
                entry.project,
                entry.domain,
                reason=entry.mistake,
            )
    scope = (entries[0].project, entries[0].domain) if entries else ("", "")
    if (report is None or serves_none) and any(entry.digest for entry in entries):
        reason = SERVES_NONE.format(member.name) if serves_none else NOT_REPORTED
        yield ClusterObject(member.name, namespace, TEMPLATES, ObjectState.WAITING, *scope, reason=reason)
    if report is None:
        return
    is_current = any(entry.digest == report.digest for entry in entries)
    for status in _read_statuses(report):
        state, reason = status.state, status.reason
        if state is ObjectState.APPLIED and not is_current:
            state, reason = ObjectState.DIFFERS, OUTDATED if entries else NOT_WANTED
        yield ClusterObject(
            member.name,
            namespace,
            status.name,
            state,
            *scope,
            reason=reason,
            drift=status.drift,
            drift_us=status.drift_us,
            at_us=at_us,
        )


def _read_statuses(report: NamespaceReportRow) -> Iterable[_StoredStatus]:
    try:
        return msgspec.json.decode(report.body, type=list[_StoredStatus])
    except UNREADABLE_ERRORS as exc:
        log_unreadable("namespace_reports", f"{report.cluster_id} {report.namespace}", str(exc))
        return ()


def render(context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str) -> Rendering:
    """Render the templates of a project and domain, and store the result as the last rendering."""
    rendering = _render(context, templates, actor, project=project, domain=domain)

    def apply(batch: Batch) -> Rendering:
        stored = msgspec.structs.replace(rendering, at_us=batch.now_us)
        body = msgspec.json.encode(stored).decode()
        namespace_rows.render_put(batch.tx, project=project, domain=domain, body=body, at_us=batch.now_us)
        record_audit(batch, context, actor, "cluster-resources.render", f"{project}/{domain}", after=stored.values)
        return stored

    return context.committer.call(apply)


def compare_rendering(
    context: Context, templates: ResourceTemplates, actor: Actor, *, project: str, domain: str
) -> RenderingChange:
    """Return a rendering made now and the last stored rendering. Stores nothing."""
    rendering = _render(context, templates, actor, project=project, domain=domain)
    with context.database.read() as tx:
        body = namespace_rows.render_get(tx, project=project, domain=domain)
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
