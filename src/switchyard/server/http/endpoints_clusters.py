"""The endpoints of clusters: registrations, invites, submit tokens, graphs and subsystems."""

from __future__ import annotations

from typing import Any

from switchyard.model.api import (
    Deleted,
    Page,
)
from switchyard.model.cluster import (
    Cluster,
    ClusterChange,
    ClusterRequest,
    GraphInfo,
    Invite,
    InviteRequest,
    NewInvite,
    SubmitConsent,
    SubmitToken,
    Subsystem,
)
from switchyard.model.graph import Graph
from switchyard.model.verdict import FitAnswer, FitRequest
from switchyard.server.http import handlers, handlers_graphs
from switchyard.server.http.body_bounds import JOB_BODY
from switchyard.server.http.endpoint import USER_OR_AGENT, Endpoint
from switchyard.server.http.query_parameters import (
    ABANDON,
    ACCOUNT,
    CURSOR,
    ID_CURSOR,
    LIMIT,
    QueryParameter,
)

CLUSTER_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/clusters", "Clusters", Page[Cluster], handlers.cluster_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/clusters", "Register a cluster", Cluster, handlers.cluster_create, ClusterRequest, 201),
    Endpoint(
        "POST",
        "/v1/clusters/fit",
        "Whether a job would fit, on every cluster you may see; store nothing",
        FitAnswer,
        body=FitRequest,
        is_ruled=True,
        bound=JOB_BODY,
    ),
    Endpoint("GET", "/v1/clusters/{cluster}", "One cluster", Cluster, handlers.cluster_get),
    Endpoint("PATCH", "/v1/clusters/{cluster}", "Change a cluster", Cluster, handlers.cluster_change, ClusterChange),
    Endpoint(
        "DELETE", "/v1/clusters/{cluster}", "End a registration", Deleted, handlers.cluster_delete, query=(ABANDON,)
    ),
    Endpoint(
        "POST",
        "/v1/clusters/{cluster}/invites",
        "A join token; registers the cluster if it is new",
        NewInvite,
        handlers.invite_create,
        InviteRequest,
        201,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/invites",
        "Join tokens of a cluster",
        Page[Invite],
        handlers.invite_list,
        query=(LIMIT, ID_CURSOR),
    ),
    Endpoint("DELETE", "/v1/invites/{invite}", "Revoke a join token", Deleted, handlers.invite_revoke),
    Endpoint(
        "POST",
        "/v1/clusters/{cluster}/submit-token",
        "A new submit token for a cluster; the old one ends",
        SubmitToken,
        handlers.submit_token_create,
        query=(ACCOUNT,),
        status=201,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/submit-consent",
        "Agree that the cluster's administrators make submit tokens in your name",
        SubmitConsent,
        handlers.consent_give,
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/submit-consent",
        "Withdraw that; submit tokens in your name end",
        Deleted,
        handlers.consent_withdraw,
    ),
    Endpoint(
        "POST",
        "/v1/cluster-groups/{group}/submit-token",
        "A new submit token for all clusters of a group; the old one ends",
        SubmitToken,
        handlers.group_submit_token_create,
        query=(ACCOUNT,),
        status=201,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/graph",
        "Set what a cluster has: JGF, R or the short form, packed (gzip, deflate) or not; it goes before the agent's",
        GraphInfo,
        handlers_graphs.graph_put,
        dict[str, Any],
        who=USER_OR_AGENT,
        is_upload=True,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/graph",
        "What a cluster has, compact; or as it was given",
        Graph,
        handlers_graphs.graph_get,
        who=USER_OR_AGENT,
        query=(QueryParameter("form", about="compact (default) or source", words=handlers_graphs.FORMS),),
        has_text=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/graph",
        "Remove the graph that was set: what the agent says holds again",
        Deleted,
        handlers_graphs.graph_delete,
        who=USER_OR_AGENT,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/subsystems",
        "The subsystems of a cluster",
        Page[Subsystem],
        handlers_graphs.subsystem_list,
        who=USER_OR_AGENT,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "Set or replace a subsystem: a further graph on the vertices of the main one",
        Subsystem,
        handlers_graphs.subsystem_put,
        dict[str, Any],
        who=USER_OR_AGENT,
        is_upload=True,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "A subsystem, as it was given",
        str,
        handlers_graphs.subsystem_get,
        who=USER_OR_AGENT,
        media="text/plain",
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "Remove a subsystem",
        Deleted,
        handlers_graphs.subsystem_delete,
        who=USER_OR_AGENT,
    ),
)
