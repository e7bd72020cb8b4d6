"""Projects and domains."""

from __future__ import annotations

from switchyard.model.rules.attributes import Domain
from switchyard.model.wire.api import Page, Project, ProjectChange, ProjectRequest
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT
from switchyard.service.access import projects
from switchyard.service.rules import attributes


def project_list(call: Call) -> Page[Project]:
    return call.page(projects.project_list(call.context, call.actor), lambda project: project.name)


def project_create(call: Call) -> Project:
    return projects.project_create(call.context, call.actor, call.body)


def project_get(call: Call) -> Project:
    return projects.project_get(call.context, call.actor, call.path["project"])


def project_change(call: Call) -> Project:
    return projects.project_change(call.context, call.actor, call.path["project"], call.body)


def domain_list(call: Call) -> Page[Domain]:
    return call.page(attributes.domain_list(call.context), lambda domain: domain.id)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/projects", "Projects", Page[Project], project_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/projects", "Make a project", Project, project_create, ProjectRequest, 201),
    Endpoint("GET", "/v1/projects/{project}", "One project", Project, project_get),
    Endpoint(
        "PATCH",
        "/v1/projects/{project}",
        "Change a project, archive it or bring it back",
        Project,
        project_change,
        ProjectChange,
    ),
    Endpoint("GET", "/v1/domains", "Domains", Page[Domain], domain_list, query=(LIMIT, CURSOR)),
)
