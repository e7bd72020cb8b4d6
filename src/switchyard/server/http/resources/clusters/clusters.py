"""Clusters, and whether a job fits them."""

from __future__ import annotations

from switchyard.model.cluster.cluster import Cluster, ClusterChange, ClusterRequest
from switchyard.model.cluster.probation import ProbationChange
from switchyard.model.cluster.verdict import FitAnswer, FitRequest
from switchyard.model.wire.api import Deleted, Page
from switchyard.model.wire.decode import JsonReader
from switchyard.server.http.bodies.body_bounds import INLINE_BYTES, JOB_BODY
from switchyard.server.http.bodies.body_decoding import decode_body, read_bounded
from switchyard.server.http.call import Call
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    refuse_parameters,
    send_body,
)
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ABANDON, CURSOR, LIMIT
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.cluster import cluster_show, clusters, probation

_fit = JsonReader(FitRequest)


async def check_fit(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/clusters/fit. A cached answer is sent from the loop."""
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    raw = await read_bounded(server.bodies, scope, receive, JOB_BODY)
    request: FitRequest = await decode_body(server.workers, scope, raw, _fit, JOB_BODY)
    is_plain = (
        len(raw) <= INLINE_BYTES and request.job is not None and request.job.spec.demand is None
    )  # even reading a jobspec may take long
    body = server.services.fit.cached(actor, request) if is_plain else None
    if body is None:
        body = await server.workers.in_thread(server.services.fit.answer, actor, request)
    await send_body(send, 200, body, JSON)


def cluster_list(call: Call) -> Page[Cluster]:
    visible = clusters.cluster_list(call.context, call.actor)
    return call.page(visible, lambda cluster: cluster.name)


def cluster_create(call: Call) -> Cluster:
    return clusters.cluster_create(call.context, call.actor, call.body)


def cluster_get(call: Call) -> Cluster:
    return cluster_show.cluster_get(call.context, call.actor, call.path["cluster"])


def cluster_change(call: Call) -> Cluster:
    return clusters.cluster_change(call.context, call.actor, call.path["cluster"], call.body)


def probation_change(call: Call) -> Cluster:
    return probation.probation_change(call.context, call.actor, call.path["cluster"], call.body)


def cluster_delete(call: Call) -> Deleted:
    unsent = clusters.cluster_delete(call.context, call.actor, call.path["cluster"], abandon=call.flag("abandon"))
    return Deleted(call.path["cluster"], outputs_given_up=unsent)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/clusters", "Clusters", Page[Cluster], cluster_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/clusters", "Register a cluster", Cluster, cluster_create, ClusterRequest, 201),
    Endpoint(
        "POST",
        "/v1/clusters/fit",
        "Whether a job would fit, on every cluster you may see; store nothing",
        FitAnswer,
        serve=check_fit,
        body=FitRequest,
        is_ruled=True,
        body_bound=JOB_BODY,
    ),
    Endpoint("GET", "/v1/clusters/{cluster}", "One cluster", Cluster, cluster_get),
    Endpoint("PATCH", "/v1/clusters/{cluster}", "Change a cluster", Cluster, cluster_change, ClusterChange),
    Endpoint(
        "POST",
        "/v1/clusters/{cluster}/probation",
        "Confirm or clear the probation of a cluster, or switch it off or on",
        Cluster,
        probation_change,
        ProbationChange,
    ),
    Endpoint("DELETE", "/v1/clusters/{cluster}", "End a registration", Deleted, cluster_delete, query=(ABANDON,)),
)
