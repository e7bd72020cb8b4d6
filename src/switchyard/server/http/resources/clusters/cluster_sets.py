"""Named sets of clusters: pools and cluster labels."""

from __future__ import annotations

from collections.abc import Callable

from switchyard.model.rules.layout import ClusterSet, LayoutPart, SetRequest
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.bodies.body_bounds import LAYOUT_BODY
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT
from switchyard.server.http.resources.clusters.layout import RESET, layout_remove
from switchyard.service.cluster import layout


def set_list(part: LayoutPart) -> Callable[[Call], Page[ClusterSet]]:
    return lambda call: call.page(layout.set_list(call.context, call.actor, part), lambda cluster_set: cluster_set.name)


def set_get(part: LayoutPart) -> Callable[[Call], ClusterSet]:
    return lambda call: layout.set_get(call.context, call.actor, part, call.path["name"])


def set_put(part: LayoutPart) -> Callable[[Call], ClusterSet]:
    return lambda call: layout.set_put(
        call.context, call.actor, part, call.path["name"], call.body, condition=call.condition
    )


def _set_endpoints(part: LayoutPart, path: str, singular: str, plural: str) -> tuple[Endpoint, ...]:
    at = f"{path}/{{name}}"
    return (
        Endpoint("GET", path, plural, Page[ClusterSet], set_list(part), query=(LIMIT, CURSOR)),
        Endpoint("GET", at, f"One {singular}", ClusterSet, set_get(part), has_etag=True),
        Endpoint(
            "PUT",
            at,
            f"Give a {singular} its members; needs If-Match, or If-None-Match: *",
            ClusterSet,
            set_put(part),
            SetRequest,
            has_etag=True,
            is_conditional=True,
            body_bound=LAYOUT_BODY,
        ),
        Endpoint(
            "DELETE",
            at,
            f"Remove a {singular}; needs If-Match",
            Deleted,
            layout_remove(part, "name"),
            query=(RESET,),
            is_conditional=True,
        ),
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    *_set_endpoints(LayoutPart.POOL, "/v1/pools", "pool", "Pools"),
    *_set_endpoints(LayoutPart.LABEL, "/v1/cluster-labels", "cluster label", "Cluster labels"),
)
