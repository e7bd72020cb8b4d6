"""The part of the table of endpoints that is about pools, cluster labels and what stands in their place."""

from __future__ import annotations

from switchyard.model.api import Deleted, Page
from switchyard.model.layout import (
    ClusterSet,
    DefaultLabelRequest,
    DomainPoolRequest,
    LayoutPart,
    LayoutView,
    NamedDefault,
    SetRequest,
)
from switchyard.model.queue import DomainTags, Queue, QueueView, TagsRequest
from switchyard.server.http import handlers_layout as handlers
from switchyard.server.http.body_bounds import LAYOUT_BODY as LARGE
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT, QueryParameter

RESET = QueryParameter("reset", "boolean", "only forget what was set at run time: the server's file holds again")


def _set_endpoints(part: LayoutPart, path: str, one: str, many: str) -> tuple[Endpoint, ...]:
    at = f"{path}/{{name}}"
    return (
        Endpoint("GET", path, many, Page[ClusterSet], handlers.set_list(part), query=(LIMIT, CURSOR)),
        Endpoint("GET", at, f"One {one}", ClusterSet, handlers.set_get(part)),
        Endpoint(
            "PUT",
            at,
            f"Give a {one} its members; needs If-Match, or If-None-Match: *",
            ClusterSet,
            handlers.set_put(part),
            SetRequest,
            is_conditional=True,
            bound=LARGE,
        ),
        Endpoint(
            "DELETE",
            at,
            f"Remove a {one}; needs If-Match",
            Deleted,
            handlers.layout_remove(part, "name"),
            query=(RESET,),
            is_conditional=True,
        ),
    )


LAYOUT_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET", "/v1/layout", "Pools, labels, queues and defaults, and who set them", LayoutView, handlers.layout_get
    ),
    *_set_endpoints(LayoutPart.POOL, "/v1/pools", "pool", "Pools"),
    *_set_endpoints(LayoutPart.LABEL, "/v1/cluster-labels", "cluster label", "Cluster labels"),
    Endpoint("GET", "/v1/queues", "Queues", Page[QueueView], handlers.queue_list, query=(LIMIT, CURSOR)),
    Endpoint("GET", "/v1/queues/{name}", "One queue", QueueView, handlers.queue_get),
    Endpoint(
        "PUT",
        "/v1/queues/{name}",
        "Give a queue its settings; needs If-Match, or If-None-Match: *",
        QueueView,
        handlers.queue_put,
        Queue,
        is_conditional=True,
        bound=LARGE,
    ),
    Endpoint(
        "DELETE",
        "/v1/queues/{name}",
        "Remove a queue; needs If-Match",
        Deleted,
        handlers.layout_remove(LayoutPart.QUEUE, "name"),
        query=(RESET,),
        is_conditional=True,
    ),
    Endpoint(
        "PUT",
        "/v1/layout/domain-tags/{domain}",
        "Set the queue tags of a domain's jobs; needs If-Match, or If-None-Match: *",
        DomainTags,
        handlers.domain_tags_put,
        TagsRequest,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/layout/domain-tags/{domain}",
        "Remove the queue tags of a domain; needs If-Match",
        Deleted,
        handlers.layout_remove(LayoutPart.DOMAIN_TAGS, "domain"),
        query=(RESET,),
        is_conditional=True,
    ),
    Endpoint(
        "PUT",
        "/v1/layout/default-label",
        "Set the label of jobs that have neither label nor pool; needs If-Match, or If-None-Match: *",
        NamedDefault,
        handlers.default_label_put,
        DefaultLabelRequest,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/layout/default-label",
        "Remove the default label; needs If-Match",
        Deleted,
        handlers.layout_remove(LayoutPart.DEFAULT_LABEL),
        query=(RESET,),
        is_conditional=True,
    ),
    Endpoint(
        "PUT",
        "/v1/layout/domain-pools/{domain}",
        "Set the pool of a domain's jobs; needs If-Match, or If-None-Match: *",
        NamedDefault,
        handlers.domain_pool_put,
        DomainPoolRequest,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/layout/domain-pools/{domain}",
        "Remove the pool of a domain; needs If-Match",
        Deleted,
        handlers.layout_remove(LayoutPart.DOMAIN_POOL, "domain"),
        query=(RESET,),
        is_conditional=True,
    ),
)
