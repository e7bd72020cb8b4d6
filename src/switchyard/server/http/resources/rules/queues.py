"""Queues."""

from __future__ import annotations

from switchyard.model.rules.layout import LayoutPart
from switchyard.model.rules.queue import Queue, QueueView
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.bodies.body_bounds import LAYOUT_BODY
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT
from switchyard.server.http.resources.clusters.layout import RESET, layout_remove
from switchyard.service.cluster import queue_settings


def queue_list(call: Call) -> Page[QueueView]:
    return call.page(queue_settings.queue_list(call.context, call.actor), lambda queue: queue.name)


def queue_get(call: Call) -> QueueView:
    return queue_settings.queue_get(call.context, call.actor, call.path["name"])


def queue_put(call: Call) -> QueueView:
    return queue_settings.queue_put(call.context, call.actor, call.path["name"], call.body, condition=call.condition)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/queues", "Queues", Page[QueueView], queue_list, query=(LIMIT, CURSOR)),
    Endpoint("GET", "/v1/queues/{name}", "One queue", QueueView, queue_get, has_etag=True),
    Endpoint(
        "PUT",
        "/v1/queues/{name}",
        "Give a queue its settings; needs If-Match, or If-None-Match: *",
        QueueView,
        queue_put,
        Queue,
        has_etag=True,
        is_conditional=True,
        body_bound=LAYOUT_BODY,
    ),
    Endpoint(
        "DELETE",
        "/v1/queues/{name}",
        "Remove a queue; needs If-Match",
        Deleted,
        layout_remove(LayoutPart.QUEUE, "name"),
        query=(RESET,),
        is_conditional=True,
    ),
)
