"""How a row of the permissions is written: the request, made anew for each role, and the status that each gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.programs import Answer
from tests.server.town import MEMBERS, ROLES, Town

JOB = {"spec": {"command": ["true"]}, "project": "own"}

Body = dict[str, Any] | None
SPEC = {"command": ["true"]}
SHORT = {"nodes": 1, "each": {"core": 4}}
IO = {"attach": {"node0": [{"type": "shm"}]}}


@dataclass(frozen=True)
class Case:
    """One request. `path` and `body` are made anew for each role; `says` has a status per role, in their order."""

    route: str
    what: str
    says: str
    path: Callable[[Town, str], str] | None = None
    body: Callable[[Town, str], Body] | None = None
    headers: dict[str, str] | None = None

    @property
    def expected(self) -> dict[str, int]:
        return dict(zip(ROLES, map(int, self.says.split()), strict=True))


def at(template: str, make: Callable[[Town], str]) -> Callable[[Town, str], str]:
    return lambda town, _role: template.format(make(town))


def own(what: str) -> Callable[[Town], str]:
    return lambda town: getattr(town, what)("own")


def foreign(what: str) -> Callable[[Town], str]:
    return lambda town: getattr(town, what)("foreign")


def fresh_cluster(group: str) -> Callable[[Town], str]:
    return lambda town: town.cluster(f"group-{group}")


def described_cluster(group: str) -> Callable[[Town], str]:
    """A fresh cluster with a graph and a subsystem that were set by hand."""

    def make(town: Town) -> str:
        name = town.cluster(f"group-{group}")
        town.must("PUT", f"/v1/clusters/{name}/graph", SHORT)
        town.must("PUT", f"/v1/clusters/{name}/subsystems/io", IO)
        return name

    return make


def agent_of(cluster: str) -> Callable[[Town], str]:
    return lambda town: town.agent(cluster)[0]


def send(**fields: Any) -> Callable[[Town, str], Body]:
    return lambda _town, _role: fields


def grant_on(on: str, what: str) -> Callable[[Town, str], Body]:
    return lambda _town, _role: {"role": "view", "to": "group", "subject": "nobodys", "on": on, "object": what}


def grant_id(on: str, what: str) -> Callable[[Town, str], str]:
    return lambda town, _role: f"/v1/grants/{town.grant(town.user()[0], 'view', on, what)}"


def endless(query: str) -> Callable[[Town, str], str]:
    return lambda _town, _role: f"/v1/events/stream?after=9000000000000000000&{query}"


def me(town: Town, role: str) -> str:
    return f"/v1/users/the-{role if role in MEMBERS else 'admin'}"


def my_token(town: Town, role: str) -> str:
    return f"/v1/tokens/{town.token_of(f'the-{role}' if role in MEMBERS else 'the-view')}"


# roles:                          nobody bad agent stranger view submit operate admin root
ALL = "200 200 200 200 200 200 200 200 200"
USERS = "401 401 401 200 200 200 200 200 200"
ROOT = "401 401 401 403 403 403 403 403 200"
ROOT_MAKES = "401 401 401 403 403 403 403 403 201"
SEES = "401 401 401 404 200 200 200 200 200"
UNSEEN = "401 401 401 404 404 404 404 404 200"
UNSEEN_MAKES = "401 401 401 404 404 404 404 404 201"
HIDDEN = "401 401 403 404 404 404 404 404 200"  # an agent is told that it is not its own
ADMINS = "401 401 401 404 403 403 403 200 200"
ADMINS_MAKE = "401 401 401 404 403 403 403 201 201"


def refused(answer: Answer, *statuses: int) -> Any:
    """A problem as it has to be."""
    assert 400 <= answer.status < 500, answer
    assert not statuses or answer.status in statuses, answer
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert problem["status"] == answer.status
    assert problem["type"] == f"urn:switchyard:error:{problem['code']}"
    assert problem["detail"]
    assert problem["next_step"]
    assert problem["title"]
    return problem
