"""The calls of Flyte's AdminService that we serve, by name. REST and gRPC use this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from switchyard.server.flyte import attributes, projects
from switchyard.server.flyte.attributes import PROJECT, PROJECT_DOMAIN, WORKFLOW


@dataclass(frozen=True)
class FlyteCall:
    """`serve(context, actor, request)` returns a message or raises a YardError. `is_open`: needs no credential."""

    serve: Callable[..., Any]
    is_open: bool = False


CALLS: dict[str, FlyteCall] = {
    "UpdateProjectAttributes": FlyteCall(partial(attributes.update, PROJECT)),
    "GetProjectAttributes": FlyteCall(partial(attributes.get, PROJECT)),
    "DeleteProjectAttributes": FlyteCall(partial(attributes.delete, PROJECT)),
    "UpdateProjectDomainAttributes": FlyteCall(partial(attributes.update, PROJECT_DOMAIN)),
    "GetProjectDomainAttributes": FlyteCall(partial(attributes.get, PROJECT_DOMAIN)),
    "DeleteProjectDomainAttributes": FlyteCall(partial(attributes.delete, PROJECT_DOMAIN)),
    "UpdateWorkflowAttributes": FlyteCall(partial(attributes.update, WORKFLOW)),
    "GetWorkflowAttributes": FlyteCall(partial(attributes.get, WORKFLOW)),
    "DeleteWorkflowAttributes": FlyteCall(partial(attributes.delete, WORKFLOW)),
    "ListMatchableAttributes": FlyteCall(attributes.list_all),
    "RegisterProject": FlyteCall(projects.register),
    "UpdateProject": FlyteCall(projects.update),
    "GetProject": FlyteCall(projects.get),
    "ListProjects": FlyteCall(projects.list_matching),
    "GetDomains": FlyteCall(projects.domains),
    "GetVersion": FlyteCall(projects.version, is_open=True),
}
