"""Flyte's calls about projects, domains and the version, on our projects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from flyteidl.admin import common_pb2, project_pb2, version_pb2

from switchyard import __version__
from switchyard.errors import NotFound
from switchyard.model.api import Project, ProjectChange, ProjectRequest
from switchyard.model.decode import convert
from switchyard.server.flyte.grpc_status import FlyteInvalid, FlyteNotFound
from switchyard.server.runtime import ServerRuntime
from switchyard.service.access import projects as service
from switchyard.service.rights import Actor
from switchyard.service.rules import attributes

ACTIVE, ARCHIVED = project_pb2.Project.ACTIVE, project_pb2.Project.ARCHIVED
# Flyte's projects become parts of Kubernetes' names, which have no capitals, dots or underscores.
PROJECT_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
FILTER = re.compile(r"(\w+)\((?:project\.)?(\w+),\s?(.+)\)\Z")  # contains(name, foo)
FILTERS_MAX = 50
OFFSET = re.compile(r"[0-9]{1,9}\Z")


def register(yard: ServerRuntime, actor: Actor, request: Any) -> Any:
    if not request.HasField("project"):
        raise FlyteInvalid("missing project")
    project = request.project
    if not project.name:
        raise FlyteInvalid("missing project_name")
    _check(project)
    if project.state != ACTIVE:
        raise FlyteInvalid("a project is registered active; archive it with UpdateProject")
    wanted = {"name": project.id, "title": project.name, "description": project.description}
    labels = {"labels": dict(project.labels.values)}
    service.project_create(yard.context, actor, convert(wanted | labels, ProjectRequest, where="project"))
    return project_pb2.ProjectRegisterResponse()


def update(yard: ServerRuntime, actor: Actor, request: Any) -> Any:
    """What is empty stays as it is, but for the state, which a client always sends."""
    if not request.id:
        raise FlyteInvalid("missing project_id")
    project = _find(yard, actor, request.id)
    _check(request)
    change: dict[str, Any] = {}
    if (request.state == ARCHIVED) is not project.is_archived:  # said only where it changes: that needs another right
        change["is_archived"] = request.state == ARCHIVED
    if request.name:
        change["title"] = request.name
    if request.description:
        change["description"] = request.description
    if request.HasField("labels"):
        change["labels"] = dict(request.labels.values)
    found = convert(change, ProjectChange, where="project")
    service.project_change(yard.context, actor, request.id, found)
    return project_pb2.ProjectUpdateResponse()


def get(yard: ServerRuntime, actor: Actor, request: Any) -> Any:
    return _message(yard, _find(yard, actor, request.id))


def list_matching(yard: ServerRuntime, actor: Actor, request: Any) -> Any:
    """Those that pass the filters; without any, those that are not archived."""
    if request.token and not OFFSET.match(request.token):
        raise FlyteInvalid(f"invalid pagination token {request.token[:80]} for ListProjects")
    passes = _filters(request.filters) if request.filters else [lambda project: not project.is_archived]
    found = [
        project for project in service.project_list(yard.context, actor) if all(passed(project) for passed in passes)
    ]
    found = _sorted(found, request.sort_by)
    offset = int(request.token or 0)
    page = found[offset : offset + request.limit] if request.limit else found[offset:]
    is_more = request.limit and offset + len(page) < len(found)
    token = str(offset + len(page)) if is_more else ""
    return project_pb2.Projects(projects=[_message(yard, project) for project in page], token=token)


def domains(yard: ServerRuntime, _actor: Actor, _request: Any) -> Any:
    return project_pb2.GetDomainsResponse(domains=_domains(yard))


def version(_yard: ServerRuntime, _actor: Actor | None, _request: Any) -> Any:
    return version_pb2.GetVersionResponse(control_plane_version=version_pb2.Version(Version=__version__))


def _check(project: Any) -> None:
    if not project.id:
        raise FlyteInvalid("missing project_id")
    if not PROJECT_ID.match(project.id):
        raise FlyteInvalid(
            f"invalid project id [{project.id[:80]}]: small letters, digits and - inside, at most 63, as in Kubernetes"
        )
    if project.domains:
        raise FlyteInvalid("Domains are set for the whole server, in its config: leave them out")
    if project.state not in (ACTIVE, ARCHIVED):
        raise FlyteInvalid("a project is ACTIVE or ARCHIVED here")


def _find(yard: ServerRuntime, actor: Actor, name: str) -> Project:
    try:
        return service.project_get(yard.context, actor, name)
    except NotFound as exc:
        raise FlyteNotFound(f"project [{name[:80]}] not found") from exc


def _message(yard: ServerRuntime, project: Project) -> Any:
    return project_pb2.Project(
        id=project.name,
        name=project.title or project.name,
        description=project.description,
        domains=_domains(yard),
        labels=common_pb2.Labels(values=project.labels),
        state=ARCHIVED if project.is_archived else ACTIVE,
    )


def _domains(yard: ServerRuntime) -> list[Any]:
    return [project_pb2.Domain(id=each.id, name=each.name or each.id) for each in attributes.domain_list(yard.context)]


COLUMNS: dict[str, Callable[[Project], str | int]] = {
    "id": lambda project: project.name,
    "identifier": lambda project: project.name,
    "name": lambda project: project.title or project.name,
    "description": lambda project: project.description,
    "state": lambda project: str(ARCHIVED if project.is_archived else ACTIVE),
    "created_at": lambda project: project.created_us,
}
COMPARE: dict[str, Callable[[str, list[str]], bool]] = {
    "eq": lambda have, wanted: have in wanted,
    "ne": lambda have, wanted: have not in wanted,
    "value_in": lambda have, wanted: have in wanted,
    "contains": lambda have, wanted: any(each in have for each in wanted),
}


def _filters(text: str) -> list[Callable[[Project], bool]]:
    """`eq(state,1)+contains(name,foo)`: all must hold. One we do not know is refused: it must not list everything."""
    parts = text.split("+")
    if len(parts) > FILTERS_MAX:
        raise FlyteInvalid("invalid value for filters")
    return [_filter(part) for part in parts]


def _filter(text: str) -> Callable[[Project], bool]:
    found = FILTER.match(text)
    if not found:
        raise FlyteInvalid("invalid value for filters")
    name, field, value = found.groups()
    if field not in COLUMNS or field == "created_at":
        raise FlyteInvalid(f"'project.{field[:80]}' is invalid filter")
    if name not in COMPARE:
        raise FlyteInvalid(f"unrecognized filter function: {name[:80]}")
    wanted = value.split(";")
    return lambda project: COMPARE[name](str(COLUMNS[field](project)), wanted)


def _sorted(found: list[Project], sort_by: Any) -> list[Project]:
    key = sort_by.key.removeprefix("project.") or "identifier"
    if key not in COLUMNS:
        raise FlyteInvalid(f"invalid sort key '{key[:80]}'")
    is_down = bool(sort_by.key) and sort_by.direction == common_pb2.Sort.DESCENDING
    return sorted(found, key=lambda project: (COLUMNS[key](project), project.name), reverse=is_down)
