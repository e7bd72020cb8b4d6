"""Settings of queues and tags of domains: read from the server's config file, and overridden at run time."""

from __future__ import annotations

from msgspec.structs import replace

from switchyard.errors import Malformed, NotFound, UnknownName
from switchyard.model.cluster.native_grammars import NAMES
from switchyard.model.rules.access import Role
from switchyard.model.rules.layout import Layout, LayoutPart, LayoutView
from switchyard.model.rules.queue import DEFAULT_QUEUE, PLAIN_QUEUE, DomainTags, Queue, QueueView, known_tags
from switchyard.service.cluster.layout import etag_of, layout_view, put_part, refuse_lost_tags, visible_clusters
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.layout_snapshot import LayoutSnapshot
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.store.engine.database import Tx

BUILT_IN = "built-in"  # the source of the default queue while it is not configured


def full_layout_view(context: Context, actor: Actor) -> LayoutView:
    """Return the whole layout, including queues and tags of domains."""
    return replace(
        layout_view(context, actor), queues=queue_list(context, actor), domain_tags=domain_tags_list(context)
    )


def queue_list(context: Context, actor: Actor) -> list[QueueView]:
    """Return all queues sorted by name, including the built-in queue."""
    snapshot = context.snapshots.laid
    names = {*snapshot.layout.queues, DEFAULT_QUEUE}
    return [_view(context, actor, snapshot, name) for name in sorted(names)]


def queue_get(context: Context, actor: Actor, name: str) -> QueueView:
    snapshot = context.snapshots.laid
    if name not in snapshot.layout.queues and name != DEFAULT_QUEUE:
        known = ", ".join(sorted({*snapshot.layout.queues, DEFAULT_QUEUE})[:50])
        raise NotFound(f"There is no queue {name[:128]}.", next_step=f"Known queues: {known}.")
    return _view(context, actor, snapshot, name)


def queue_put(context: Context, actor: Actor, name: str, queue: Queue, *, condition: WriteCondition) -> QueueView:
    """Replace the settings of a queue."""
    if len(set(queue.attributes)) < len(queue.attributes):
        duplicates = sorted({tag for tag in queue.attributes if queue.attributes.count(tag) > 1})
        raise Malformed(f"The queue {name[:128]}: the attributes {', '.join(duplicates)} are given twice.")
    for cluster, native in queue.native.items():
        if problem := NAMES.problem(native):
            raise Malformed(f"The queue {name[:128]}: native.{cluster}: {problem}.")

    def check(tx: Tx, layout: Layout) -> None:
        refuse_lost_tags(tx, layout, layout.queues | {name: queue})

    put_part(context, actor, (LayoutPart.QUEUE, name), queue, condition=condition, check=check)
    return queue_get(context, actor, name)


def domain_tags_list(context: Context) -> list[DomainTags]:
    snapshot = context.snapshots.laid
    return [_tags_view(snapshot, domain) for domain in sorted(snapshot.layout.domain_tags)]


def domain_tags_put(
    context: Context, actor: Actor, domain: str, tags: list[str], *, condition: WriteCondition
) -> DomainTags:
    """Set the default tags of a domain's jobs. They apply if neither the job nor an attribute sets tags."""

    def check(_: Tx, layout: Layout) -> None:
        domains = context.snapshots.policy.platform.domains
        if domain not in domains:
            raise UnknownName(f"There is no domain {domain!r}.", next_step=f"Known domains: {', '.join(domains)}.")
        known = known_tags(layout.queues)
        if unknown := [tag for tag in tags if tag not in known]:
            raise UnknownName(
                f"No queue has the tags {', '.join(unknown)}.",
                next_step=f"Known queue tags: {', '.join(sorted(known))}.",
            )

    put_part(context, actor, (LayoutPart.DOMAIN_TAGS, domain), tags, condition=condition, check=check)
    return _tags_view(context.snapshots.laid, domain)


def _view(context: Context, actor: Actor, snapshot: LayoutSnapshot, name: str) -> QueueView:
    """Return a queue's settings without the clusters and projects that the actor may not see."""
    queue, override = snapshot.layout.queues.get(name, PLAIN_QUEUE), snapshot.rows.get((LayoutPart.QUEUE, name))
    clusters = visible_clusters(context, actor)
    named = {*queue.limits.projects, *queue.weights}
    projects = {project for project in named if actor.may_project(Role.VIEW, project)}
    visible_queue = replace(
        queue,
        limits=replace(
            queue.limits, projects={key: limit for key, limit in queue.limits.projects.items() if key in projects}
        ),
        native={key: native for key, native in queue.native.items() if key in clusters},
        weights={key: weight for key, weight in queue.weights.items() if key in projects},
    )
    if name not in snapshot.layout.queues:
        return QueueView(name, visible_queue, BUILT_IN, "")
    etag = etag_of(snapshot, LayoutPart.QUEUE, name)[0] or ""
    if override is None:
        return QueueView(name, visible_queue, "file", etag)
    return QueueView(name, visible_queue, "set", etag, override.changed_us, override.changed_by)


def _tags_view(snapshot: LayoutSnapshot, domain: str) -> DomainTags:
    tags, override = snapshot.layout.domain_tags[domain], snapshot.rows.get((LayoutPart.DOMAIN_TAGS, domain))
    etag = etag_of(snapshot, LayoutPart.DOMAIN_TAGS, domain)[0] or ""
    if override is None:
        return DomainTags(domain, tags, "file", etag)
    return DomainTags(domain, tags, "set", etag, override.changed_us, override.changed_by)
