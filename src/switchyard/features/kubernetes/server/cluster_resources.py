"""Cluster resources: the filled templates of a project and domain, and their state on Kubernetes clusters."""

from __future__ import annotations

from switchyard.features.kubernetes.model.namespace_objects import (
    ClusterObject,
    NamespaceIndex,
    NamespaceObjects,
    ResourceReport,
)
from switchyard.features.kubernetes.model.rendering import Rendering, RenderingChange, RenderRequest
from switchyard.features.kubernetes.service import namespace_status
from switchyard.features.kubernetes.service.resource_templates import ResourceTemplates
from switchyard.model.cluster.namespace_resources import NAMESPACE_PATTERN
from switchyard.model.rules.names import NAME_PATTERN
from switchyard.model.wire.api import Page
from switchyard.server.http.bodies.body_bounds import BodyBound
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Caller, Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT, QueryParameter

RESOURCES_BODY = BodyBound("report on namespaces", 8 * 2**20, 256_000)  # 100 namespaces of 400 objects


def rendering_make(call: Call) -> Rendering:
    return namespace_status.render(
        call.context,
        call.context.setting(ResourceTemplates),
        call.actor,
        project=call.body.project,
        domain=call.body.domain,
    )


def rendering_changes(call: Call) -> RenderingChange:
    return namespace_status.compare_rendering(
        call.context,
        call.context.setting(ResourceTemplates),
        call.actor,
        project=call.text("project") or "",
        domain=call.text("domain") or "",
    )


def object_states(call: Call) -> Page[ClusterObject]:
    return namespace_status.object_states(
        call.context,
        call.actor,
        project=call.text("project"),
        domain=call.text("domain"),
        cluster=call.text("cluster"),
        is_problem=call.flag("problems"),
        after=call.text("cursor") or "",
        limit=call.limit,
    )


def namespace_index(call: Call) -> NamespaceIndex:
    assert call.agent is not None
    return namespace_status.namespace_index(call.context, call.agent)


def namespace_objects(call: Call) -> NamespaceObjects:
    assert call.agent is not None
    return namespace_status.namespace_objects(call.context, call.agent, call.text("namespace") or "")


def report_objects(call: Call) -> dict[str, str]:
    assert call.agent is not None
    namespace_status.take_report(call.context, call.agent, call.body)
    return {}


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/cluster-resources",
        "Render the templates of a project and domain, and store the result",
        Rendering,
        rendering_make,
        RenderRequest,
    ),
    Endpoint(
        "GET",
        "/v1/cluster-resources/changes",
        "The templates rendered now, and the last stored rendering",
        RenderingChange,
        rendering_changes,
        query=(
            QueryParameter("project", is_required=True, pattern=NAME_PATTERN, about="a project's name"),
            QueryParameter("domain", is_required=True, pattern=NAME_PATTERN, about="a domain's name"),
        ),
    ),
    Endpoint(
        "GET",
        "/v1/cluster-resources/status",
        "The state of each rendered object on each Kubernetes cluster",
        Page[ClusterObject],
        object_states,
        query=(
            QueryParameter("project", pattern=NAME_PATTERN, about="only of this project"),
            QueryParameter("domain", pattern=NAME_PATTERN, about="only of this domain"),
            QueryParameter("cluster", pattern=NAME_PATTERN, about="only on this cluster"),
            QueryParameter("problems", "boolean", "without objects that are applied"),
            LIMIT,
            CURSOR,
        ),
        is_heavy=True,
    ),
    Endpoint(
        "GET",
        "/v1/agents/cluster-resources",
        "All namespaces with the digests of their objects, for agents of Kubernetes clusters",
        NamespaceIndex,
        namespace_index,
        caller=Caller.AGENT,
    ),
    Endpoint(
        "GET",
        "/v1/agents/cluster-resources/objects",
        "The objects of one namespace, with the contents of Secrets, for agents of Kubernetes clusters",
        NamespaceObjects,
        namespace_objects,
        caller=Caller.AGENT,
        query=(QueryParameter("namespace", is_required=True, pattern=NAMESPACE_PATTERN, about="its name"),),
    ),
    Endpoint(
        "POST",
        "/v1/agents/cluster-resources/status",
        "Report the state of objects of namespaces",
        dict[str, str],
        report_objects,
        ResourceReport,
        caller=Caller.AGENT,
        body_bound=RESOURCES_BODY,
    ),
)
