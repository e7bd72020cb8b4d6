"""The layout, and what it gives to jobs that name nothing: default label, pools and queue tags of domains."""

from __future__ import annotations

from collections.abc import Callable

from switchyard.model.rules.layout import DefaultLabelRequest, DomainPoolRequest, LayoutPart, LayoutView, NamedDefault
from switchyard.model.rules.queue import DomainTags, TagsRequest
from switchyard.model.wire.api import Deleted
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.service.cluster import layout, queue_settings

RESET = QueryParameter("reset", "boolean", "only forget what was set at run time: the server's file holds again")


def layout_get(call: Call) -> LayoutView:
    return queue_settings.full_layout_view(call.context, call.actor)


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


VIEW_ENDPOINTS = (
    Endpoint("GET", "/v1/layout", "Pools, labels, queues and defaults, and who set them", LayoutView, layout_get),
)
DEFAULTS_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "PUT",
        "/v1/layout/domain-tags/{domain}",
        "Set the queue tags of a domain's jobs; needs If-Match, or If-None-Match: *",
        DomainTags,
        domain_tags_put,
        TagsRequest,
        has_etag=True,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/layout/domain-tags/{domain}",
        "Remove the queue tags of a domain; needs If-Match",
        Deleted,
        layout_remove(LayoutPart.DOMAIN_TAGS, "domain"),
        query=(RESET,),
        is_conditional=True,
    ),
    Endpoint(
        "PUT",
        "/v1/layout/default-label",
        "Set the label of jobs that have neither label nor pool; needs If-Match, or If-None-Match: *",
        NamedDefault,
        default_label_put,
        DefaultLabelRequest,
        has_etag=True,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/layout/default-label",
        "Remove the default label; needs If-Match",
        Deleted,
        layout_remove(LayoutPart.DEFAULT_LABEL),
        query=(RESET,),
        is_conditional=True,
    ),
    Endpoint(
        "PUT",
        "/v1/layout/domain-pools/{domain}",
        "Set the pool of a domain's jobs; needs If-Match, or If-None-Match: *",
        NamedDefault,
        domain_pool_put,
        DomainPoolRequest,
        has_etag=True,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/layout/domain-pools/{domain}",
        "Remove the pool of a domain; needs If-Match",
        Deleted,
        layout_remove(LayoutPart.DOMAIN_POOL, "domain"),
        query=(RESET,),
        is_conditional=True,
    ),
)
