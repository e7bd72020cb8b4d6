"""The table of all endpoints. Routes and the OpenAPI document come from it, in this order."""

from __future__ import annotations

from switchyard.server.feature import server_features
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.resources.access import projects, server_info, submit_tokens, users
from switchyard.server.http.resources.clusters import (
    agent_files,
    agent_poll,
    agents,
    clusters,
    graphs,
    invites,
    layout,
)
from switchyard.server.http.resources.files import file_views, files
from switchyard.server.http.resources.jobs import events, jobs, submissions
from switchyard.server.http.resources.rules import attributes, token_pools

ENDPOINTS: tuple[Endpoint, ...] = (
    *server_info.ENDPOINTS,
    *submissions.ENDPOINTS,
    *jobs.ENDPOINTS,
    *files.ENDPOINTS,
    *file_views.ENDPOINTS,
    *events.ENDPOINTS,
    *clusters.ENDPOINTS,
    *invites.ENDPOINTS,
    *submit_tokens.ENDPOINTS,
    *graphs.ENDPOINTS,
    *agents.ENDPOINTS,
    *agent_poll.ENDPOINTS,
    *agent_files.ENDPOINTS,
    *users.ENDPOINTS,
    *layout.ENDPOINTS,
    *projects.ENDPOINTS,
    *attributes.ENDPOINTS,
    *token_pools.ENDPOINTS,
    *(endpoint for feature in server_features() for endpoint in feature.endpoints()),
)
