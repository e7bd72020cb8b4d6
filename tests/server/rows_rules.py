"""Who may do what about projects, domains and attributes: the rows of the table of permissions that are about rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.town import Town

KIND = "/v1/attributes/execution-queue-attribute"
FIRST = {"If-None-Match": "*"}
ANY = {"If-Match": "*"}
# roles:   nobody bad agent stranger view submit operate admin root
USERS = "401 401 401 200 200 200 200 200 200"
ROOT = "401 401 401 403 403 403 403 403 200"
ROOT_MAKES = "401 401 401 403 403 403 403 403 201"
VIEWS = "401 401 401 403 200 200 200 200 200"
ADMINS = "401 401 401 403 403 403 403 200 200"
SEES = "401 401 401 404 200 200 200 200 200"
UNSEEN = "401 401 401 404 404 404 404 404 200"
CHANGES = "401 401 401 404 403 403 403 200 200"


def scope_in(town: Town, project: str) -> str:
    return f"project={project}&domain=development&workflow={town.name('flow')}"


def unset(project: str) -> Callable[[Town, str], str]:
    return lambda town, _role: f"{KIND}?{scope_in(town, project)}"


def stored(project: str, tail: str = "") -> Callable[[Town, str], str]:
    """A row that was just put."""

    def path(town: Town, _role: str) -> str:
        where = scope_in(town, project)
        answer = town.ask("PUT", f"{KIND}?{where}", {"tags": ["default"]}, token=town.root, headers=FIRST)
        assert answer.status == 200, answer.body
        return f"{KIND}{tail}?{where}"

    return path


def fixed(path: str) -> Callable[[Town, str], str]:
    return lambda _town, _role: path


def body(**fields: Any) -> Callable[[Town, str], dict[str, Any]]:
    return lambda _town, _role: fields


def _about(project: str, *, reads: str, writes: str) -> list[dict[str, Any]]:
    what = f"{project} project"
    put = body(tags=["default"])
    attribute = "/v1/attributes/{kind}"
    asked = f"project={project}&domain=development"
    return [
        {"route": f"GET {attribute}", "what": what, "says": reads, "path": stored(project)},
        {
            "route": f"PUT {attribute}",
            "what": what,
            "says": writes,
            "path": unset(project),
            "body": put,
            "headers": FIRST,
        },
        {
            "route": f"POST {attribute}/check",
            "what": what,
            "says": writes,
            "path": fixed(f"{KIND}/check?{asked}"),
            "body": put,
        },
        {"route": f"DELETE {attribute}", "what": what, "says": writes, "path": stored(project), "headers": ANY},
        {"route": f"GET {attribute}/effective", "what": what, "says": reads, "path": stored(project, "/effective")},
        {"route": f"GET {attribute}/history", "what": what, "says": reads, "path": stored(project, "/history")},
        {"route": "GET /v1/policy", "what": what, "says": reads, "path": fixed(f"/v1/policy?{asked}")},
    ]


RULES: list[dict[str, Any]] = [
    {"route": "GET /v1/projects", "what": "those one may see", "says": USERS},
    {
        "route": "POST /v1/projects",
        "what": "new",
        "says": ROOT_MAKES,
        "body": lambda town, _role: {"name": town.name("made")},
    },
    {"route": "GET /v1/projects/{project}", "what": "own project", "says": SEES, "path": fixed("/v1/projects/own")},
    {
        "route": "GET /v1/projects/{project}",
        "what": "foreign project",
        "says": UNSEEN,
        "path": fixed("/v1/projects/foreign"),
    },
    {
        "route": "PATCH /v1/projects/{project}",
        "what": "own project",
        "says": CHANGES,
        "path": fixed("/v1/projects/own"),
        "body": body(title="Ours"),
    },
    {
        "route": "PATCH /v1/projects/{project}",
        "what": "own project, back from the archive",
        "says": "401 401 401 404 403 403 403 403 200",
        "path": fixed("/v1/projects/own"),
        "body": body(is_archived=False),
    },
    {
        "route": "PATCH /v1/projects/{project}",
        "what": "foreign project",
        "says": UNSEEN,
        "path": fixed("/v1/projects/foreign"),
        "body": body(title="Theirs"),
    },
    {"route": "GET /v1/domains", "what": "all", "says": USERS},
    {"route": "GET /v1/attribute-kinds", "what": "all", "says": USERS},
    {
        "route": "GET /v1/attributes/{kind}/list",
        "what": "those one may see",
        "says": USERS,
        "path": fixed(f"{KIND}/list"),
    },
    *_about("own", reads=VIEWS, writes=ADMINS),
    *_about("foreign", reads=ROOT, writes=ROOT),
    {
        "route": "PUT /v1/attributes/{kind}",
        "what": "a domain",
        "says": ROOT,
        "path": lambda _town, _role: f"{KIND}?domain=staging",
        "body": body(tags=["default"]),
        "headers": FIRST,
    },
    {
        "route": "GET /v1/attributes/{kind}/effective",
        "what": "a domain",
        "says": USERS,
        "path": fixed(f"{KIND}/effective?domain=staging"),
    },
]
