"""The table of endpoints: method, path, who may, what goes in, what comes out. Routes and OpenAPI come from it."""

from __future__ import annotations

from typing import Any

from switchyard.errors import Malformed
from switchyard.model.access import (
    Grant,
    GrantRequest,
    NewToken,
    Token,
    TokenRequest,
    User,
    UserChange,
    UserRequest,
)
from switchyard.model.api import (
    AuditEntry,
    BulkAnswer,
    BulkRequest,
    CancelledMany,
    CancelMany,
    CancelRequest,
    Created,
    Deleted,
    Event,
    JobChange,
    Me,
    Output,
    Page,
    RetryRequest,
    Version,
)
from switchyard.model.cluster import (
    Agent,
    AgentChange,
    Cluster,
    ClusterChange,
    ClusterRequest,
    GraphInfo,
    Invite,
    InviteRequest,
    NewInvite,
    SubmitToken,
    Subsystem,
)
from switchyard.model.graph import Graph
from switchyard.model.job import Job, JobRequest, Task
from switchyard.model.poll import Join, Joined, Poll, PollAnswer, Rotated
from switchyard.model.quote import Quotes
from switchyard.model.rendering import Rendering, RenderingChange, RenderRequest
from switchyard.model.stats import RouteStats
from switchyard.model.verdict import Explanation, FitAnswer, FitRequest, Plan
from switchyard.server.http import graph_handlers, handlers, handlers_rendering, handlers_stats
from switchyard.server.http.body_bounds import BULK, JOB, POLL
from switchyard.server.http.endpoint import ABANDON, AGENT, CURSOR, EITHER, JOINER, LIMIT, OPEN, Endpoint, Query
from switchyard.server.http.endpoints_layout import LAYOUT
from switchyard.server.http.endpoints_rules import RULES
from switchyard.server.http.endpoints_tokens import TOKENS

ACCOUNT = Query("account", about="whose jobs they are that show the token and no other credential")
_JOB_FILTERS = (
    Query("state", about="only in these states", is_repeatable=True),
    Query("cluster"),
    Query("project"),
    Query("domain"),
    Query("owner"),
    Query("workflow"),
    Query("launch_plan"),
    Query("label", about="key=value", is_repeatable=True),
    Query("id", about="only these, by whole ids", is_repeatable=True),
    Query("since_s", "integer", "only those made within so many seconds"),
    Query("spec", "boolean", "with the specs"),
    LIMIT,
    CURSOR,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/version", "The server's version and clock", Version, handlers.version, who=OPEN),
    Endpoint("GET", "/v1/schema", "The JSON Schema of a job file", dict[str, Any], handlers.schema, who=OPEN),
    Endpoint("GET", "/v1/whoami", "Who the server takes you for", Me, handlers.whoami),
    Endpoint(
        "POST", "/v1/jobs", "Submit a job; 201 once it is durable", Created, body=JobRequest, status=201, bound=JOB
    ),
    Endpoint(
        "POST",
        "/v1/jobs/bulk",
        "Submit many jobs: all or none, or each by itself",
        BulkAnswer,
        body=BulkRequest,
        status=201,
        bound=BULK,
    ),
    Endpoint(
        "POST", "/v1/plan", "Decide where a job would go; store nothing", Plan, handlers.plan, JobRequest, bound=JOB
    ),
    Endpoint(
        "POST",
        "/v1/quotes",
        "When and for how much a job would run; no job is made",
        Quotes,
        body=JobRequest,
        bound=JOB,
    ),
    Endpoint("GET", "/v1/jobs", "Jobs, newest first", Page[Job], handlers.job_list, query=_JOB_FILTERS),
    Endpoint("GET", "/v1/jobs/{job}", "One job, by id or unambiguous prefix", Job, handlers.job_get),
    Endpoint("PATCH", "/v1/jobs/{job}", "Hold, release, another priority", Job, handlers.job_change, JobChange),
    Endpoint("POST", "/v1/jobs/{job}/retry", "An ended job once more", Created, handlers.job_retry, RetryRequest, 201),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/tasks",
        "The tasks of an array",
        Page[Task],
        handlers.task_list,
        query=(Query("state", about="only in these states", is_repeatable=True), LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/wait",
        "The job, once it is final or the time is over",
        Job,
        handlers.job_get,
        query=(Query("timeout_s", "number", "at most 60"),),
        is_waiting=True,
    ),
    Endpoint("POST", "/v1/jobs/{job}/cancel", "Ask for a job's end", Job, handlers.job_cancel, CancelRequest),
    Endpoint(
        "POST",
        "/v1/jobs/cancel",
        "Ask for the end of all jobs that a selector means, round by round",
        CancelledMany,
        handlers.cancel_many,
        CancelMany,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/events",
        "What happened to a job",
        Page[Event],
        handlers.job_events,
        query=(LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/output",
        "What a job wrote",
        Output,
        handlers.job_output,
        query=(
            Query("stream", about="stdout or stderr"),
            Query("task", "integer", "of an array: the task's index"),
            Query("attempt", "integer", "1 is the first; none: the last"),
            Query("offset", "integer", "from this byte on; one answer has at most 1 MiB"),
            Query("wait_s", "number", "wait up to 60 s for more, or for the end of the attempt"),
        ),
        is_waiting=True,
    ),
    Endpoint("GET", "/v1/jobs/{job}/explain", "Why a job is where it is", Explanation, handlers.job_explain),
    Endpoint(
        "GET",
        "/v1/events",
        "What happened to all jobs you may view, in order",
        Page[Event],
        handlers.event_list,
        query=(
            Query("after", "integer", "only after this number"),
            Query("since_s", "integer", "only what happened within so many seconds"),
            LIMIT,
            CURSOR,
        ),
    ),
    Endpoint(
        "GET",
        "/v1/events/stream",
        "What happens to jobs you may view, as server-sent events, without end; Last-Event-ID goes on",
        Event,
        query=(
            Query("after", "integer", "from this number on; none: from now on"),
            Query("job", about="only of this job"),
            Query("project", about="only of this project"),
        ),
        media="text/event-stream",
    ),
    Endpoint(
        "GET",
        "/v1/stats/routes",
        "Where jobs you may view went, counted",
        RouteStats,
        handlers_stats.routes,
        query=(Query("since_s", "integer", "jobs made within so many seconds; none: an hour"),),
    ),
    Endpoint("GET", "/v1/clusters", "Clusters", Page[Cluster], handlers.cluster_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/clusters", "Register a cluster", Cluster, handlers.cluster_create, ClusterRequest, 201),
    Endpoint(
        "POST",
        "/v1/clusters/fit",
        "Whether a job would fit, on every cluster you may see; store nothing",
        FitAnswer,
        body=FitRequest,
        bound=JOB,
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
        query=(LIMIT, CURSOR),
    ),
    Endpoint("DELETE", "/v1/invites/{invite}", "Revoke a join token", Deleted, handlers.invite_revoke),
    Endpoint(
        "POST",
        "/v1/clusters/{cluster}/submit-token",
        "A new submit token for a cluster; the old one ends",
        SubmitToken,
        handlers.submit_token,
        query=(ACCOUNT,),
        status=201,
    ),
    Endpoint(
        "POST",
        "/v1/cluster-groups/{group}/submit-token",
        "A new submit token for all clusters of a group; the old one ends",
        SubmitToken,
        handlers.group_submit_token,
        query=(ACCOUNT,),
        status=201,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/graph",
        "Set what a cluster has: JGF, R or the short form, packed (gzip, deflate) or not; it goes before the agent's",
        GraphInfo,
        graph_handlers.graph_put,
        dict[str, Any],
        who=EITHER,
        is_upload=True,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/graph",
        "What a cluster has, compact; or as it was given",
        Graph,
        graph_handlers.graph_get,
        who=EITHER,
        query=(Query("form", about="compact (default) or source"),),
        has_text=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/graph",
        "Remove the graph that was set: what the agent says holds again",
        Deleted,
        graph_handlers.graph_delete,
        who=EITHER,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/subsystems",
        "The subsystems of a cluster",
        Page[Subsystem],
        graph_handlers.subsystem_list,
        who=EITHER,
    ),
    Endpoint(
        "PUT",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "Set or replace a subsystem: a further graph on the vertices of the main one",
        Subsystem,
        graph_handlers.subsystem_put,
        dict[str, Any],
        who=EITHER,
        is_upload=True,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "A subsystem, as it was given",
        str,
        graph_handlers.subsystem_get,
        who=EITHER,
        media="text/plain",
    ),
    Endpoint(
        "DELETE",
        "/v1/clusters/{cluster}/subsystems/{subsystem}",
        "Remove a subsystem",
        Deleted,
        graph_handlers.subsystem_delete,
        who=EITHER,
    ),
    Endpoint("GET", "/v1/agents", "Agents", Page[Agent], handlers.agent_list, query=(Query("cluster"), LIMIT, CURSOR)),
    Endpoint("PATCH", "/v1/agents/{agent}", "Pause or resume an agent", Agent, handlers.agent_change, AgentChange),
    Endpoint("DELETE", "/v1/agents/{agent}", "Remove an agent", Deleted, handlers.agent_remove, query=(ABANDON,)),
    Endpoint("GET", "/v1/agents/self", "The agent that asks", Agent, handlers.agent_self, who=AGENT),
    Endpoint("POST", "/v1/agents/rotate", "A new credential", Rotated, handlers.agent_rotate, status=201, who=AGENT),
    Endpoint("POST", "/v1/agents/join", "Join a cluster", Joined, handlers.join, Join, 201, JOINER),
    Endpoint("POST", "/v1/agents/poll", "Reports up, leases down", PollAnswer, body=Poll, who=AGENT, bound=POLL),
    Endpoint("GET", "/v1/users", "Users", Page[User], handlers.user_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/users", "Make a user", User, handlers.user_create, UserRequest, 201),
    Endpoint("GET", "/v1/users/{user}", "One user", User, handlers.user_get),
    Endpoint("PATCH", "/v1/users/{user}", "Change a user", User, handlers.user_change, UserChange),
    Endpoint("DELETE", "/v1/users/{user}", "Delete a user", Deleted, handlers.user_delete),
    Endpoint("GET", "/v1/tokens", "Tokens, without secrets", Page[Token], handlers.token_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/tokens", "Make a token, shown once", NewToken, handlers.token_create, TokenRequest, 201),
    Endpoint("DELETE", "/v1/tokens/{token}", "Revoke a token", Deleted, handlers.token_revoke),
    Endpoint("GET", "/v1/grants", "Grants", Page[Grant], handlers.grant_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/grants", "Grant a role", Grant, handlers.grant_create, GrantRequest, 201),
    Endpoint("DELETE", "/v1/grants/{grant}", "Take a grant back", Deleted, handlers.grant_delete),
    *LAYOUT,
    *RULES,
    *TOKENS,
    Endpoint(
        "POST",
        "/v1/cluster-resources",
        "Fill the templates of a project and domain, and keep the result",
        Rendering,
        handlers_rendering.render,
        RenderRequest,
    ),
    Endpoint(
        "GET",
        "/v1/cluster-resources/changes",
        "What the templates would be now, beside the last that was kept",
        RenderingChange,
        handlers_rendering.changes,
        query=(Query("project"), Query("domain")),
    ),
    Endpoint("GET", "/v1/audit", "Who changed what", Page[AuditEntry], handlers.audit_list, query=(LIMIT, CURSOR)),
)


def check_query(endpoint: Endpoint, given: list[tuple[str, str]]) -> None:
    """Unknown and repeated parameters are mistakes: a misspelt filter must not list everything."""
    known = {query.name: query for query in endpoint.query}
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise Malformed(f"There is no parameter {name[:80]!r} here; known: {listed}.")
        if name in seen and not known[name].is_repeatable:
            raise Malformed(f"The parameter {name!r} is given twice.")
        seen.add(name)
