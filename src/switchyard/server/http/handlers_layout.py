"""The endpoints of pools, cluster labels and what stands where a request says nothing: from a Call to a use case."""

from __future__ import annotations

from collections.abc import Callable

from switchyard.model.api import Deleted, Page
from switchyard.model.layout import ClusterSet, LayoutPart, LayoutView, NamedDefault
from switchyard.model.queue import DomainTags, QueueView
from switchyard.server.http.call import Call
from switchyard.server.http.handlers import page_of
from switchyard.server.http.handlers_attributes import condition_of
from switchyard.service.cluster import layout, queue_settings


def layout_get(call: Call) -> LayoutView:
    return queue_settings.full_layout_view(call.yard.context, call.actor)


def set_list(part: LayoutPart) -> Callable[[Call], Page[ClusterSet]]:
    return lambda call: page_of(call, layout.set_list(call.yard.context, call.actor, part), lambda each: each.name)


def set_get(part: LayoutPart) -> Callable[[Call], ClusterSet]:
    return lambda call: layout.set_get(call.yard.context, call.actor, part, call.path["name"])


def set_put(part: LayoutPart) -> Callable[[Call], ClusterSet]:
    return lambda call: layout.set_put(
        call.yard.context, call.actor, part, call.path["name"], call.body, condition=condition_of(call)
    )


def default_label_put(call: Call) -> NamedDefault:
    return layout.default_label_put(call.yard.context, call.actor, call.body.label, condition=condition_of(call))


def domain_pool_put(call: Call) -> NamedDefault:
    return layout.domain_pool_put(
        call.yard.context, call.actor, call.path["domain"], call.body.pool, condition=condition_of(call)
    )


def queue_list(call: Call) -> Page[QueueView]:
    return page_of(call, queue_settings.queue_list(call.yard.context, call.actor), lambda each: each.name)


def queue_get(call: Call) -> QueueView:
    return queue_settings.queue_get(call.yard.context, call.actor, call.path["name"])


def queue_put(call: Call) -> QueueView:
    return queue_settings.queue_put(
        call.yard.context, call.actor, call.path["name"], call.body, condition=condition_of(call)
    )


def domain_tags_put(call: Call) -> DomainTags:
    return queue_settings.domain_tags_put(
        call.yard.context, call.actor, call.path["domain"], call.body.tags, condition=condition_of(call)
    )


def layout_remove(part: LayoutPart, word: str = "") -> Callable[[Call], Deleted]:
    """`word`: of the path, which names what is removed."""

    def handle(call: Call) -> Deleted:
        name = call.path[word] if word else ""
        layout.remove_part(
            call.yard.context,
            call.actor,
            part,
            name,
            condition=condition_of(call),
            is_reset=call.flag("reset"),
        )
        return Deleted(name or part.value)

    return handle
