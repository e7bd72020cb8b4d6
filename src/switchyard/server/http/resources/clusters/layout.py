"""The layout: pools, cluster labels, queues, and what it gives to jobs that name nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchyard.model.rules.layout import (
    ClusterSet,
    DefaultLabelRequest,
    DomainPoolRequest,
    LayoutPart,
    LayoutView,
    NamedDefault,
    SetRequest,
)
from switchyard.model.rules.queue import DomainTags, Queue, QueueView, TagsRequest
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.bodies.body_bounds import LAYOUT_BODY
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT, QueryParameter
from switchyard.service.cluster import layout, queue_settings

RESET = QueryParameter("reset", "boolean", "only forget what was set at run time: the server's file holds again")


def layout_get(call: Call) -> LayoutView:
    return queue_settings.full_layout_view(call.context, call.actor)


def set_list(part: LayoutPart) -> Callable[[Call], Page[ClusterSet]]:
    return lambda call: call.page(layout.set_list(call.context, call.actor, part), lambda cluster_set: cluster_set.name)


def set_get(part: LayoutPart) -> Callable[[Call], ClusterSet]:
    return lambda call: layout.set_get(call.context, call.actor, part, call.path["name"])


def set_put(part: LayoutPart) -> Callable[[Call], ClusterSet]:
    return lambda call: layout.set_put(
        call.context, call.actor, part, call.path["name"], call.body, condition=call.condition
    )


def queue_list(call: Call) -> Page[QueueView]:
    return call.page(queue_settings.queue_list(call.context, call.actor), lambda queue: queue.name)


def queue_get(call: Call) -> QueueView:
    return queue_settings.queue_get(call.context, call.actor, call.path["name"])


def queue_put(call: Call) -> QueueView:
    return queue_settings.queue_put(call.context, call.actor, call.path["name"], call.body, condition=call.condition)


def default_label_put(call: Call) -> NamedDefault:
    return layout.default_label_put(call.context, call.actor, call.body.label, condition=call.condition)


def domain_pool_put(call: Call) -> NamedDefault:
    return layout.domain_pool_put(
        call.context, call.actor, call.path["domain"], call.body.pool, condition=call.condition
    )


def domain_tags_put(call: Call) -> DomainTags:
    return queue_settings.domain_tags_put(
        call.context, call.actor, call.path["domain"], call.body.tags, condition=call.condition
    )


def layout_remove(part: LayoutPart, word: str = "") -> Callable[[Call], Deleted]:
    """Make a handler that removes a part of the layout. `word`: the path parameter that names it."""

    def handle(call: Call) -> Deleted:
        name = call.path[word] if word else ""
        layout.remove_part(call.context, call.actor, part, name, condition=call.condition, is_reset=call.flag("reset"))
        return Deleted(name or part.value)

    return handle


def _put(path: str, about: str, answer: Any, handle: Callable[[Call], Any], body: Any, **more: Any) -> Endpoint:
    about = f"{about}; needs If-Match, or If-None-Match: *"
    return Endpoint("PUT", path, about, answer, handle, body, has_etag=True, is_conditional=True, **more)


def _delete(path: str, about: str, part: LayoutPart, word: str = "") -> Endpoint:
    about, handle = f"{about}; needs If-Match", layout_remove(part, word)
    return Endpoint("DELETE", path, about, Deleted, handle, query=(RESET,), is_conditional=True)


def _sets(part: LayoutPart, path: str, singular: str, plural: str) -> tuple[Endpoint, ...]:
    """The endpoints of pools or of cluster labels: named sets of clusters."""
    at, about = f"{path}/{{name}}", f"Give a {singular} its members"
    return (
        Endpoint("GET", path, plural, Page[ClusterSet], set_list(part), query=(LIMIT, CURSOR)),
        Endpoint("GET", at, f"One {singular}", ClusterSet, set_get(part), has_etag=True),
        _put(at, about, ClusterSet, set_put(part), SetRequest, body_bound=LAYOUT_BODY),
        _delete(at, f"Remove a {singular}", part, "name"),
    )


QUEUE, TAGS = "/v1/queues/{name}", "/v1/layout/domain-tags/{domain}"
LABEL, DOMAIN_POOL = "/v1/layout/default-label", "/v1/layout/domain-pools/{domain}"
LABEL_ABOUT = "Set the label of jobs that have neither label nor pool"
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/layout", "Pools, labels, queues and defaults, and who set them", LayoutView, layout_get),
    *_sets(LayoutPart.POOL, "/v1/pools", "pool", "Pools"),
    *_sets(LayoutPart.LABEL, "/v1/cluster-labels", "cluster label", "Cluster labels"),
    Endpoint("GET", "/v1/queues", "Queues", Page[QueueView], queue_list, query=(LIMIT, CURSOR)),
    Endpoint("GET", QUEUE, "One queue", QueueView, queue_get, has_etag=True),
    _put(QUEUE, "Give a queue its settings", QueueView, queue_put, Queue, body_bound=LAYOUT_BODY),
    _delete(QUEUE, "Remove a queue", LayoutPart.QUEUE, "name"),
    _put(TAGS, "Set the queue tags of a domain's jobs", DomainTags, domain_tags_put, TagsRequest),
    _delete(TAGS, "Remove the queue tags of a domain", LayoutPart.DOMAIN_TAGS, "domain"),
    _put(LABEL, LABEL_ABOUT, NamedDefault, default_label_put, DefaultLabelRequest),
    _delete(LABEL, "Remove the default label", LayoutPart.DEFAULT_LABEL),
    _put(DOMAIN_POOL, "Set the pool of a domain's jobs", NamedDefault, domain_pool_put, DomainPoolRequest),
    _delete(DOMAIN_POOL, "Remove the pool of a domain", LayoutPart.DOMAIN_POOL, "domain"),
)
