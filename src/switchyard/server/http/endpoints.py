"""The table of endpoints: method, path, who may, what goes in, what comes out. Routes and OpenAPI come from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    CreatedJob,
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
)
from switchyard.model.idset import INDEX_MAX
from switchyard.model.job import Job, JobRequest, Task
from switchyard.model.log import STREAMS
from switchyard.model.names import NAME_PATTERN
from switchyard.model.poll import Join, Joined, Poll, PollAnswer, Rotate, Rotated
from switchyard.model.quote import Quotes
from switchyard.model.rendering import Rendering, RenderingChange, RenderRequest
from switchyard.model.stats import RouteStats
from switchyard.model.verdict import Explanation, Plan
from switchyard.server.http import handlers, handlers_rendering, handlers_stats
from switchyard.server.http.body_bounds import BULK_BODY, JOB_BODY, POLL_BODY
from switchyard.server.http.endpoint import AGENT, JOINER, OPEN, Endpoint
from switchyard.server.http.endpoints_attributes import ATTRIBUTE_ENDPOINTS
from switchyard.server.http.endpoints_clusters import CLUSTER_ENDPOINTS
from switchyard.server.http.endpoints_layout import LAYOUT_ENDPOINTS
from switchyard.server.http.endpoints_token_pools import TOKEN_POOL_ENDPOINTS
from switchyard.server.http.query_parameters import (
    ABANDON,
    CURSOR,
    ID_CURSOR,
    INDEX_CURSOR,
    JOB_FILTERS,
    LIMIT,
    SECONDS_MAX,
    SEQ_CURSOR,
    SINCE,
    STATE_FILTER,
    QueryParameter,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/version", "The server's version and clock", Version, handlers.version, who=OPEN),
    Endpoint("GET", "/v1/schema", "The JSON Schema of a job file", dict[str, Any], handlers.job_schema, who=OPEN),
    Endpoint("GET", "/v1/whoami", "Who the server takes you for", Me, handlers.whoami),
    Endpoint(
        "POST",
        "/v1/jobs",
        "Submit a job; 201 once it is durable",
        CreatedJob,
        body=JobRequest,
        status=201,
        is_keyed=True,
        is_ruled=True,
        bound=JOB_BODY,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/bulk",
        "Submit many jobs: all or none, or each by itself",
        BulkAnswer,
        body=BulkRequest,
        status=201,
        bound=BULK_BODY,
        is_keyed=True,
        is_ruled=True,
    ),
    Endpoint(
        "POST",
        "/v1/plan",
        "Decide where a job would go; store nothing",
        Plan,
        handlers.plan,
        JobRequest,
        is_ruled=True,
        bound=JOB_BODY,
    ),
    Endpoint(
        "POST",
        "/v1/quotes",
        "When and for how much a job would run; no job is made",
        Quotes,
        body=JobRequest,
        is_ruled=True,
        bound=JOB_BODY,
    ),
    Endpoint("GET", "/v1/jobs", "Jobs, newest first", Page[Job], handlers.job_list, query=JOB_FILTERS),
    Endpoint("GET", "/v1/jobs/{job}", "One job, by id or unambiguous prefix", Job, handlers.job_get),
    Endpoint("PATCH", "/v1/jobs/{job}", "Hold, release, another priority", Job, handlers.job_change, JobChange),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/retry",
        "An ended job once more",
        CreatedJob,
        handlers.job_retry,
        RetryRequest,
        201,
        is_body_optional=True,
        is_ruled=True,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/tasks",
        "The tasks of an array",
        Page[Task],
        handlers.task_list,
        query=(STATE_FILTER, LIMIT, INDEX_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/wait",
        "The job, once it is final or the time is over",
        Job,
        handlers.job_get,
        query=(QueryParameter("timeout_s", "number", "at most 60 are waited", most=SECONDS_MAX),),
        is_waiting=True,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/cancel",
        "Ask for a job's end",
        Job,
        handlers.job_cancel,
        CancelRequest,
        is_body_optional=True,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/cancel",
        "Ask for the end of all jobs that a selector means, round by round",
        CancelledMany,
        handlers.jobs_cancel,
        CancelMany,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/events",
        "What happened to a job",
        Page[Event],
        handlers.job_events,
        query=(LIMIT, SEQ_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/output",
        "What a job wrote",
        Output,
        handlers.job_output,
        query=(
            QueryParameter("stream", about="stdout or stderr", words=STREAMS),
            QueryParameter("task", "integer", "of an array: the task's index", most=INDEX_MAX),
            QueryParameter("attempt", "integer", "1 is the first; none: the last", least=1, most=10**6),
            QueryParameter("offset", "integer", "from this byte on; one answer has at most 1 MiB", most=2**62),
            QueryParameter(
                "wait_s", "number", "wait up to 60 s for more, or for the end of the attempt", most=SECONDS_MAX
            ),
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
            QueryParameter("after", "integer", "only after this number"),
            SINCE,
            LIMIT,
            SEQ_CURSOR,
        ),
    ),
    Endpoint(
        "GET",
        "/v1/events/stream",
        "What happens to jobs you may view, as server-sent events, without end; Last-Event-ID goes on",
        Event,
        query=(
            QueryParameter("after", "integer", "from this number on; none: from now on"),
            QueryParameter("job", about="only of this job"),
            QueryParameter("project", about="only of this project"),
        ),
        media="text/event-stream",
    ),
    Endpoint(
        "GET",
        "/v1/stats/routes",
        "Where jobs you may view went, counted",
        RouteStats,
        handlers_stats.route_stats_get,
        is_heavy=True,
        query=(replace(SINCE, about="jobs made within so many seconds; none: an hour"),),
    ),
    *CLUSTER_ENDPOINTS,
    Endpoint(
        "GET",
        "/v1/agents",
        "Agents",
        Page[Agent],
        handlers.agent_list,
        query=(QueryParameter("cluster"), LIMIT, CURSOR),
    ),
    Endpoint("PATCH", "/v1/agents/{agent}", "Pause or resume an agent", Agent, handlers.agent_change, AgentChange),
    Endpoint("DELETE", "/v1/agents/{agent}", "Remove an agent", Deleted, handlers.agent_remove, query=(ABANDON,)),
    Endpoint("GET", "/v1/agents/self", "The agent that asks", Agent, handlers.agent_self, who=AGENT),
    Endpoint(
        "POST",
        "/v1/agents/rotate",
        "A new credential",
        Rotated,
        handlers.agent_rotate,
        Rotate,
        201,
        AGENT,
        is_body_optional=True,
    ),
    Endpoint("POST", "/v1/agents/join", "Join a cluster", Joined, handlers.cluster_join, Join, 201, JOINER),
    Endpoint("POST", "/v1/agents/poll", "Reports up, leases down", PollAnswer, body=Poll, who=AGENT, bound=POLL_BODY),
    Endpoint("GET", "/v1/users", "Users", Page[User], handlers.user_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/users", "Make a user", User, handlers.user_create, UserRequest, 201),
    Endpoint("GET", "/v1/users/{user}", "One user", User, handlers.user_get),
    Endpoint("PATCH", "/v1/users/{user}", "Change a user", User, handlers.user_change, UserChange),
    Endpoint("DELETE", "/v1/users/{user}", "Delete a user", Deleted, handlers.user_delete),
    Endpoint("GET", "/v1/tokens", "Tokens, no secrets", Page[Token], handlers.token_list, query=(LIMIT, ID_CURSOR)),
    Endpoint("POST", "/v1/tokens", "Make a token, shown once", NewToken, handlers.token_create, TokenRequest, 201),
    Endpoint(
        "DELETE",
        "/v1/tokens/{token}",
        "Revoke a token, and those that were made with it",
        Deleted,
        handlers.token_revoke,
        query=(QueryParameter("only", "boolean", "those that were made with it live on; for platform administrators"),),
    ),
    Endpoint("GET", "/v1/grants", "Grants", Page[Grant], handlers.grant_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/grants", "Grant a role", Grant, handlers.grant_create, GrantRequest, 201),
    Endpoint("DELETE", "/v1/grants/{grant}", "Take a grant back", Deleted, handlers.grant_delete),
    *LAYOUT_ENDPOINTS,
    *ATTRIBUTE_ENDPOINTS,
    *TOKEN_POOL_ENDPOINTS,
    Endpoint(
        "POST",
        "/v1/cluster-resources",
        "Fill the templates of a project and domain, and keep the result",
        Rendering,
        handlers_rendering.rendering_make,
        RenderRequest,
    ),
    Endpoint(
        "GET",
        "/v1/cluster-resources/changes",
        "What the templates would be now, beside the last that was kept",
        RenderingChange,
        handlers_rendering.rendering_changes,
        query=(
            QueryParameter("project", is_required=True, pattern=NAME_PATTERN, about="a project's name"),
            QueryParameter("domain", is_required=True, pattern=NAME_PATTERN, about="a domain's name"),
        ),
    ),
    Endpoint("GET", "/v1/audit", "Who changed what", Page[AuditEntry], handlers.audit_list, query=(LIMIT, ID_CURSOR)),
)
