"""Flyte's calls about projects, domains and the version, on our projects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flyteidl.admin import common_pb2, project_pb2, version_pb2

from switchyard import __version__
from switchyard.errors import NotFound
from switchyard.features.flyte.server.grpc_status import FlyteInvalid, FlyteNotFound
from switchyard.model.wire.api import Project, ProjectChange, ProjectRequest
from switchyard.model.wire.decode import convert
from switchyard.service.access import projects as service
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.rules import attributes

ACTIVE, ARCHIVED = project_pb2.Project.ACTIVE, project_pb2.Project.ARCHIVED
# Flyte uses project names in Kubernetes names, which have no capitals, dots or underscores.
PROJECT_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
FILTER = re.compile(r"(\w+)\((?:project\.)?(\w+),\s?(.+)\)\Z")  # contains(name, foo)
FILTERS_MAX = 50
OFFSET = re.compile(r"[0-9]{1,9}\Z")


def register(context: Context, actor: Actor, request: Any) -> Any:
    if not request.HasField("project"):
        raise FlyteInvalid("missing project")
    project = request.project
    if not project.name:
        raise FlyteInvalid("missing project_name")
    _check(project)
    if project.state != ACTIVE:
        raise FlyteInvalid("a project is registered active; archive it with UpdateProject")
    values = {"name": project.id, "title": project.name, "description": project.description}
    labels = {"labels": dict(project.labels.values)}
    service.project_create(context, actor, convert(values | labels, ProjectRequest, where="project"))
    return project_pb2.ProjectRegisterResponse()


def update(context: Context, actor: Actor, request: Any) -> Any:
    """Change the fields that are not empty, and the state, which a client always sends."""
    if not request.id:
        raise FlyteInvalid("missing project_id")
    project = _find(context, actor, request.id)
    _check(request)
    change: dict[str, Any] = {}
    if (request.state == ARCHIVED) is not project.is_archived:  # only if it changes: that needs another right
        change["is_archived"] = request.state == ARCHIVED
    if request.name:
        change["title"] = request.name
    if request.description:
        change["description"] = request.description
    if request.HasField("labels"):
        change["labels"] = dict(request.labels.values)
    project_change = convert(change, ProjectChange, where="project")
    service.project_change(context, actor, request.id, project_change)
    return project_pb2.ProjectUpdateResponse()


def get(context: Context, actor: Actor, request: Any) -> Any:
    return _message(context, _find(context, actor, request.id))


def list_matching(context: Context, actor: Actor, request: Any) -> Any:
    """List the projects that pass the filters; without filters, those that are not archived."""
    if request.token and not OFFSET.match(request.token):
        raise FlyteInvalid(f"invalid pagination token {request.token[:80]} for ListProjects")
    passes = _filters(request.filters) if request.filters else [lambda project: not project.is_archived]
    projects = [
        project for project in service.project_list(context, actor) if all(passed(project) for passed in passes)
    ]
    projects = _sorted(projects, request.sort_by)
    offset = int(request.token or 0)
    page = projects[offset : offset + request.limit] if request.limit else projects[offset:]
    is_more = request.limit and offset + len(page) < len(projects)
    token = str(offset + len(page)) if is_more else ""
    return project_pb2.Projects(projects=[_message(context, project) for project in page], token=token)


def domains(context: Context, _actor: Actor, _request: Any) -> Any:
    return project_pb2.GetDomainsResponse(domains=_domains(context))


def version(_context: Context, _actor: Actor | None, _request: Any) -> Any:
    return version_pb2.GetVersionResponse(control_plane_version=version_pb2.Version(Version=__version__))


def _check(project: Any) -> None:
    if not project.id:
        raise FlyteInvalid("missing project_id")
    if not PROJECT_ID.match(project.id):
        raise FlyteInvalid(
            f"invalid project id [{project.id[:80]}]: small letters, digits and - inside, at most 63, as in Kubernetes"
        )
    if project.domains:
        raise FlyteInvalid("Domains are set for the whole context, in its config: leave them out")
    if project.state not in (ACTIVE, ARCHIVED):
        raise FlyteInvalid("a project is ACTIVE or ARCHIVED here")


def _find(context: Context, actor: Actor, name: str) -> Project:
    try:
        return service.project_get(context, actor, name)
    except NotFound as exc:
        raise FlyteNotFound(f"project [{name[:80]}] not found") from exc


def _message(context: Context, project: Project) -> Any:
    return project_pb2.Project(
        id=project.name,
        name=project.title or project.name,
        description=project.description,
        domains=_domains(context),
        labels=common_pb2.Labels(values=project.labels),
        state=ARCHIVED if project.is_archived else ACTIVE,
    )


def _domains(context: Context) -> list[Any]:
    return [
        project_pb2.Domain(id=domain.id, name=domain.name or domain.id) for domain in attributes.domain_list(context)
    ]


COLUMNS: dict[str, Callable[[Project], str | int]] = {
    "id": lambda project: project.name,
    "identifier": lambda project: project.name,
    "name": lambda project: project.title or project.name,
    "description": lambda project: project.description,
    "state": lambda project: str(ARCHIVED if project.is_archived else ACTIVE),
    "created_at": lambda project: project.created_us,
}
COMPARE: dict[str, Callable[[str, list[str]], bool]] = {
    "eq": lambda actual, values: actual in values,
    "ne": lambda actual, values: actual not in values,
    "value_in": lambda actual, values: actual in values,
    "contains": lambda actual, values: any(value in actual for value in values),
}


def _filters(text: str) -> list[Callable[[Project], bool]]:
    """`eq(state,1)+contains(name,foo)`: all must hold. An unknown filter is refused: it must not list everything."""
    parts = text.split("+")
    if len(parts) > FILTERS_MAX:
        raise FlyteInvalid("invalid value for filters")
    return [_filter(part) for part in parts]


def _filter(text: str) -> Callable[[Project], bool]:
    match = FILTER.match(text)
    if not match:
        raise FlyteInvalid("invalid value for filters")
    name, field, value = match.groups()
    if field not in COLUMNS or field == "created_at":
        raise FlyteInvalid(f"'project.{field[:80]}' is invalid filter")
    if name not in COMPARE:
        raise FlyteInvalid(f"unrecognized filter function: {name[:80]}")
    values = value.split(";")
    return lambda project: COMPARE[name](str(COLUMNS[field](project)), values)


def _sorted(projects: list[Project], sort_by: Any) -> list[Project]:
    key = sort_by.key.removeprefix("project.") or "identifier"
    if key not in COLUMNS:
        raise FlyteInvalid(f"invalid sort key '{key[:80]}'")
    is_down = bool(sort_by.key) and sort_by.direction == common_pb2.Sort.DESCENDING
    return sorted(projects, key=lambda project: (COLUMNS[key](project), project.name), reverse=is_down)
