"""What we serve of Flyte's AdminService, by the names of its calls; both doors read this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from switchyard.server.flyte import attributes, projects
from switchyard.server.flyte.attributes import PROJECT, PROJECT_DOMAIN, WORKFLOW


@dataclass(frozen=True)
class Call:
    """`serve(yard, actor, request)` answers with a message or raises a YardError. `is_open`: to all; no actor."""

    serve: Callable[..., Any]
    is_open: bool = False


CALLS: dict[str, Call] = {
    "UpdateProjectAttributes": Call(partial(attributes.update, PROJECT)),
    "GetProjectAttributes": Call(partial(attributes.get, PROJECT)),
    "DeleteProjectAttributes": Call(partial(attributes.delete, PROJECT)),
    "UpdateProjectDomainAttributes": Call(partial(attributes.update, PROJECT_DOMAIN)),
    "GetProjectDomainAttributes": Call(partial(attributes.get, PROJECT_DOMAIN)),
    "DeleteProjectDomainAttributes": Call(partial(attributes.delete, PROJECT_DOMAIN)),
    "UpdateWorkflowAttributes": Call(partial(attributes.update, WORKFLOW)),
    "GetWorkflowAttributes": Call(partial(attributes.get, WORKFLOW)),
    "DeleteWorkflowAttributes": Call(partial(attributes.delete, WORKFLOW)),
    "ListMatchableAttributes": Call(attributes.list_all),
    "RegisterProject": Call(projects.register),
    "UpdateProject": Call(projects.update),
    "GetProject": Call(projects.get),
    "ListProjects": Call(projects.list_some),
    "GetDomains": Call(projects.domains),
    "GetVersion": Call(projects.version, is_open=True),
}
