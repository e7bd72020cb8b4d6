"""The table of all endpoints. Routes and the OpenAPI document come from it, in this order."""

from __future__ import annotations

from switchyard.server.feature import server_features
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.resources.access import audit, grants, projects, server_info, submit_tokens, tokens, users
from switchyard.server.http.resources.clusters import (
    agent_files,
    agent_poll,
    agents,
    cluster_resources,
    cluster_sets,
    clusters,
    graphs,
    invites,
    layout,
    stats,
)
from switchyard.server.http.resources.files import file_views, files
from switchyard.server.http.resources.jobs import events, job_actions, jobs, quotes, submissions
from switchyard.server.http.resources.rules import attributes, queues, token_pools

ENDPOINTS: tuple[Endpoint, ...] = (
    *server_info.ENDPOINTS,
    *submissions.ENDPOINTS,
    *quotes.ENDPOINTS,
    *jobs.ENDPOINTS,
    *job_actions.ENDPOINTS,
    *files.ENDPOINTS,
    *file_views.ENDPOINTS,
    *events.ENDPOINTS,
    *stats.ENDPOINTS,
    *clusters.ENDPOINTS,
    *invites.ENDPOINTS,
    *submit_tokens.ENDPOINTS,
    *graphs.ENDPOINTS,
    *agents.ENDPOINTS,
    *agent_poll.ENDPOINTS,
    *agent_files.ENDPOINTS,
    *users.ENDPOINTS,
    *tokens.ENDPOINTS,
    *grants.ENDPOINTS,
    *layout.VIEW_ENDPOINTS,
    *cluster_sets.ENDPOINTS,
    *queues.ENDPOINTS,
    *layout.DEFAULTS_ENDPOINTS,
    *projects.ENDPOINTS,
    *attributes.ENDPOINTS,
    *token_pools.ENDPOINTS,
    *cluster_resources.ENDPOINTS,
    *audit.ENDPOINTS,
    *(endpoint for feature in server_features() for endpoint in feature.endpoints()),
)
