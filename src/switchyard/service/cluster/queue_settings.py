"""Queues and the domains' tags as they are set: from the server's file, and changed at run time like pools."""

from __future__ import annotations

from msgspec.structs import replace

from switchyard.errors import Malformed, NotFound, UnknownName
from switchyard.model.access import Role
from switchyard.model.layout import Layout, LayoutPart, LayoutView
from switchyard.model.native_grammars import NAMES
from switchyard.model.queue import (
    DEFAULT_QUEUE,
    PLAIN_QUEUE,
    DomainTags,
    Queue,
    QueueView,
    known_tags,
)
from switchyard.service.cluster.layout import etag_of, layout_view, put_part, refuse_lost_tags, visible_clusters
from switchyard.service.context import Context
from switchyard.service.layout_snapshot import LayoutSnapshot
from switchyard.service.rights import Actor
from switchyard.service.rules.attributes import WriteCondition
from switchyard.store.database import Tx

BUILT_IN = "built-in"  # the source of a queue that nobody set


def full_layout_view(context: Context, actor: Actor) -> LayoutView:
    """Everything that is laid out."""
    return replace(
        layout_view(context, actor), queues=queue_list(context, actor), domain_tags=domain_tags_list(context)
    )


def queue_list(context: Context, actor: Actor) -> list[QueueView]:
    """Every queue by name, the built-in one included."""
    laid = context.snapshots.laid
    names = {*laid.layout.queues, DEFAULT_QUEUE}
    return [_view(context, actor, laid, name) for name in sorted(names)]


def queue_get(context: Context, actor: Actor, name: str) -> QueueView:
    laid = context.snapshots.laid
    if name not in laid.layout.queues and name != DEFAULT_QUEUE:
        known = ", ".join(sorted({*laid.layout.queues, DEFAULT_QUEUE})[:50])
        raise NotFound(f"There is no queue {name[:128]}.", next_step=f"Known queues: {known}.")
    return _view(context, actor, laid, name)


def queue_put(context: Context, actor: Actor, name: str, queue: Queue, *, condition: WriteCondition) -> QueueView:
    """Give a queue these settings, and no others."""
    if len(set(queue.attributes)) < len(queue.attributes):
        twice = sorted({tag for tag in queue.attributes if queue.attributes.count(tag) > 1})
        raise Malformed(f"The queue {name[:128]}: the attributes {', '.join(twice)} are given twice.")
    for cluster, native in queue.native.items():
        if problem := NAMES.problem(native):
            raise Malformed(f"The queue {name[:128]}: native.{cluster}: {problem}.")

    def check(tx: Tx, layout: Layout) -> None:
        refuse_lost_tags(tx, layout, layout.queues | {name: queue})

    put_part(context, actor, (LayoutPart.QUEUE, name), queue, condition=condition, check=check)
    return queue_get(context, actor, name)


def domain_tags_list(context: Context) -> list[DomainTags]:
    laid = context.snapshots.laid
    return [_tags_view(laid, domain) for domain in sorted(laid.layout.domain_tags)]


def domain_tags_put(
    context: Context, actor: Actor, domain: str, tags: list[str], *, condition: WriteCondition
) -> DomainTags:
    """The tags of a domain's jobs, where neither the job nor an attribute gives any."""

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


def _view(context: Context, actor: Actor, laid: LayoutSnapshot, name: str) -> QueueView:
    """Of the clusters and projects that a queue names those one may see."""
    queue, standing = laid.layout.queues.get(name, PLAIN_QUEUE), laid.rows.get((LayoutPart.QUEUE, name))
    visible = visible_clusters(context, actor)
    projects = {*queue.limits.projects, *queue.weights}
    seen = {project for project in projects if actor.may_project(Role.VIEW, project)}
    shown = replace(
        queue,
        limits=replace(
            queue.limits, projects={key: most for key, most in queue.limits.projects.items() if key in seen}
        ),
        native={key: native for key, native in queue.native.items() if key in visible},
        weights={key: weight for key, weight in queue.weights.items() if key in seen},
    )
    if name not in laid.layout.queues:
        return QueueView(name, shown, BUILT_IN, "")
    etag = etag_of(laid, LayoutPart.QUEUE, name)[0] or ""
    if standing is None:
        return QueueView(name, shown, "file", etag)
    return QueueView(name, shown, "set", etag, standing.changed_us, standing.changed_by)


def _tags_view(laid: LayoutSnapshot, domain: str) -> DomainTags:
    tags, standing = laid.layout.domain_tags[domain], laid.rows.get((LayoutPart.DOMAIN_TAGS, domain))
    etag = etag_of(laid, LayoutPart.DOMAIN_TAGS, domain)[0] or ""
    if standing is None:
        return DomainTags(domain, tags, "file", etag)
    return DomainTags(domain, tags, "set", etag, standing.changed_us, standing.changed_by)
