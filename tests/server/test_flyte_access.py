"""Who may do what at Flyte's doors: the same tokens, grants and roles as everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.server.flyte_doors import PATHS, Doors, opened

pytestmark = pytest.mark.xdist_group("flyte-access")
DEV = "development"
HERE = {"project": "own", "domain": DEV, "workflow": "w"}
LABEL = {"matching_attributes": {"execution_cluster_label": {"value": "P"}}}
DENIED, OK, INVALID = "PERMISSION_DENIED", "OK", "INVALID_ARGUMENT"
# Who may what, of those who hold: nothing, view, submit, admin on the project; admin on the platform.
ROLES = ("stranger", "view", "submit", "admin", "root")
READ = (DENIED, OK, OK, OK, OK)
WRITE = (DENIED, DENIED, DENIED, OK, OK)
PLATFORM = (DENIED, DENIED, DENIED, DENIED, OK)
ALL = (OK,) * 5
KINDS = ("Task", "Workflow", "LaunchPlan")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with opened(tmp_path_factory.mktemp("doors"), auth=True) as made:
        for name in ("own", "foreign"):
            made.v1("POST", "/v1/projects", {"name": name})
            for scope in ({"project": name}, {"project": name, "domain": DEV}, {"domain": "production"}):
                if "project" in scope or name == "own":
                    made.put("execution-cluster-label", {"value": "P"}, **scope)
        yield made


@pytest.fixture(scope="module")
def people(doors: Doors) -> dict[str, Doors]:
    """The doors, as each of them comes to them."""
    doors_by_role = {"root": doors}
    for role in ROLES[:-1]:
        name = f"the-{role}"
        doors.v1("POST", "/v1/users", {"name": name})
        if role != "stranger":
            grant = {"role": role, "to": "user", "subject": name, "on": "project", "object": "own"}
            doors.v1("POST", "/v1/grants", grant)
        doors_by_role[role] = replace(doors, token=doors.v1("POST", "/v1/tokens", {"user": name})["token"])
    return doors_by_role


def named(level: str) -> dict[str, str]:
    words = {"Project": 1, "ProjectDomain": 2, "Workflow": 3}[level]
    return dict(list(HERE.items())[:words])


def an_id(kind: str, name: str, version: str = "v1") -> dict[str, str]:
    return {"resource_type": kind, "project": "own", "domain": DEV, "name": name, "version": version}


TASK = {
    "type": "python-task",
    "metadata": {"runtime": {"version": "1"}},
    "interface": {"outputs": {"variables": {"o0": {"type": {"simple": "INTEGER"}}}}},
    "container": {"image": "i", "args": ["true"]},
}
FLOW = {
    "interface": {},
    "nodes": [{"id": "n0", "task_node": {"reference_id": an_id("TASK", "t")}}],
}
HERE_NAMED = {"project": "own", "domain": DEV, "name": "w"}
PAGE = {"limit": 10}
LEVELS = ("Project", "ProjectDomain", "Workflow")
# Whoever may submit to a project may register in it; `registered` has done so.
REGISTER = (DENIED, DENIED, *("ALREADY_EXISTS",) * 3)
SUBMIT = (DENIED, DENIED, OK, OK, OK)
CREATE = (DENIED, DENIED, OK, "FAILED_PRECONDITION", "FAILED_PRECONDITION")  # the name is taken
ABSENT = (DENIED, *("NOT_FOUND",) * 4)
RUN = {"project": "own", "domain": DEV, "name": "e1"}
NO_RUN = {**RUN, "name": "e9"}
NO_NODE = {"execution_id": RUN, "node_id": "n9"}
NO_ATTEMPT = {"node_execution_id": NO_NODE, "task_id": an_id("TASK", "t"), "retry_attempt": 0}
TRUE = {"scalar": {"primitive": {"boolean": True}}}
TABLE: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [
    *((f"Update{level}Attributes", {"attributes": {**named(level), **LABEL}}, WRITE) for level in LEVELS),
    *((f"Get{level}Attributes", {**named(level), "resource_type": 3}, READ) for level in LEVELS),
    *((f"Delete{level}Attributes", {**named(level), "resource_type": 2}, WRITE) for level in LEVELS),
    ("ListMatchableAttributes", {"resource_type": 3}, ALL),
    ("RegisterProject", {"project": {"id": "bad_id", "name": "x"}}, (INVALID,) * 5),
    ("GetProject", {"id": "own"}, ("NOT_FOUND", OK, OK, OK, OK)),
    ("UpdateProject", {"id": "own", "description": "new"}, ("NOT_FOUND", DENIED, DENIED, OK, OK)),
    ("ListProjects", {}, ALL),
    ("GetDomains", {}, ALL),
    ("GetVersion", {}, ALL),
    ("CreateTask", {"id": an_id("TASK", "t"), "spec": {"template": TASK}}, REGISTER),
    ("CreateWorkflow", {"id": an_id("WORKFLOW", "w"), "spec": {"template": FLOW}}, REGISTER),
    ("CreateLaunchPlan", {"id": an_id("LAUNCH_PLAN", "w"), "spec": {"workflow_id": an_id("WORKFLOW", "w")}}, REGISTER),
    ("GetTask", {"id": an_id("TASK", "t")}, READ),
    ("GetWorkflow", {"id": an_id("WORKFLOW", "w")}, READ),
    ("GetLaunchPlan", {"id": an_id("LAUNCH_PLAN", "w")}, READ),
    *((f"List{kind}s", {"id": {"project": "own", "domain": DEV}, **PAGE}, READ) for kind in KINDS),
    *((f"List{kind}Ids", {"project": "own", "domain": DEV, **PAGE}, READ) for kind in KINDS),
    ("UpdateLaunchPlan", {"id": an_id("LAUNCH_PLAN", "w"), "state": "ACTIVE"}, SUBMIT),
    ("GetActiveLaunchPlan", {"id": HERE_NAMED}, READ),
    ("ListActiveLaunchPlans", {"project": "own", "domain": DEV, **PAGE}, READ),
    ("ListNamedEntities", {"resource_type": "TASK", "project": "own", "domain": DEV, **PAGE}, READ),
    ("GetNamedEntity", {"resource_type": "WORKFLOW", "id": HERE_NAMED}, READ),
    ("UpdateNamedEntity", {"resource_type": "WORKFLOW", "id": HERE_NAMED, "metadata": {"description": "x"}}, SUBMIT),
    # The first who may creates it; the equal request of another user is another one.
    ("CreateExecution", {**RUN, "spec": {"launch_plan": an_id("TASK", "t")}}, CREATE),
    ("RelaunchExecution", {"id": NO_RUN, "name": "e8"}, ABSENT),
    ("RecoverExecution", {"id": NO_RUN, "name": "e8"}, ABSENT),
    ("UpdateExecution", {"id": RUN, "state": "EXECUTION_ACTIVE"}, SUBMIT),
    ("TerminateExecution", {"id": NO_RUN, "cause": "x"}, ABSENT),
    *((f"GetExecution{what}", {"id": RUN}, READ) for what in ("", "Data", "Metrics")),
    ("ListExecutions", {"id": {"project": "own", "domain": DEV}, **PAGE}, READ),
    ("ListNodeExecutions", {"workflow_execution_id": RUN, **PAGE}, READ),
    *((f"GetNodeExecution{what}", {"id": NO_NODE}, ABSENT) for what in ("", "Data")),
    ("GetDynamicNodeWorkflow", {"id": NO_NODE}, ABSENT),
    ("ListTaskExecutions", {"node_execution_id": NO_NODE, **PAGE}, ABSENT),
    *((f"GetTaskExecution{what}", {"id": NO_ATTEMPT}, ABSENT) for what in ("", "Data")),
    ("ListSignals", {"workflow_execution_id": RUN, **PAGE}, READ),
    ("GetData", {"flyte_url": f"flyte://v1/own/{DEV}/e1/start-node/i"}, READ),
    ("CreateDownloadLink", {"artifact_type": "ARTIFACT_TYPE_DECK", "node_execution_id": NO_NODE}, ABSENT),
    ("SetSignal", {"id": {"signal_id": "s", "execution_id": NO_RUN}, "value": TRUE}, ABSENT),
]


def test_the_table_has_every_call_that_is_served() -> None:
    assert {name for name, _, _ in TABLE} == set(PATHS)


@pytest.fixture(scope="module", autouse=True)
def registered(people: dict[str, Doors]) -> None:
    """What the table reads is there, whichever row comes first."""
    for name, asked, codes in TABLE:
        if codes in (REGISTER, SUBMIT, CREATE):
            assert people["submit"].by_grpc(name, asked).code == OK


@pytest.mark.parametrize("way", ["rest", "grpc"])
@pytest.mark.parametrize(("name", "asked", "codes"), TABLE)
def test_each_call_by_each_role(
    people: dict[str, Doors], way: str, name: str, asked: Mapping[str, Any], codes: tuple[str, ...]
) -> None:
    answered = {role: people[role].ways()[way](name, asked).code for role in ROLES}
    assert answered == dict(zip(ROLES, codes, strict=True))


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_only_administrators_of_the_platform_make_archive_and_bring_back_projects(
    people: dict[str, Doors], way: str
) -> None:
    for role, code in zip(ROLES, PLATFORM, strict=True):
        door = people[role].ways()[way]
        assert door("RegisterProject", {"project": {"id": f"new-{way}", "name": "x"}}).code == code
        if role != "stranger":
            assert door("UpdateProject", {"id": "own", "state": "ARCHIVED"}).code == code
    assert people["admin"].ways()[way]("UpdateProject", {"id": "own"}).code == DENIED
    assert people["root"].ways()[way]("UpdateProject", {"id": "own"}).code == OK


@pytest.mark.parametrize("token", [None, f"yard_{'0' * 26}_wrong", "nonsense"], ids=["none", "wrong", "nonsense"])
@pytest.mark.parametrize("name", sorted(PATHS))
def test_without_a_token_that_holds_only_the_version_is_told(doors: Doors, name: str, token: str | None) -> None:
    nobody = replace(doors, token=token)
    asked = next(asked for call, asked, _ in TABLE if call == name)
    for door in nobody.ways().values():
        assert door(name, asked).code == (OK if name == "GetVersion" else "UNAUTHENTICATED")


@pytest.mark.parametrize("way", ["rest", "grpc"])
def test_lists_show_what_one_may_view_and_what_holds_for_everyone(people: dict[str, Doors], way: str) -> None:
    def seen(role: str) -> set[str]:
        rows = people[role].ways()[way]("ListMatchableAttributes", {"resource_type": 3}).answer["configurations"]
        return {row.get("project", "") for row in rows}

    def projects(role: str) -> list[str]:
        return [project["id"] for project in people[role].ways()[way]("ListProjects", {}).answer["projects"]]

    assert [seen(role) for role in ("stranger", "view", "root")] == [{""}, {"", "own"}, {"", "own", "foreign"}]
    assert [projects(role) for role in ("stranger", "view")] == [["default"], ["default", "own"]]


def test_whether_a_project_exists_is_not_for_strangers_to_know(people: dict[str, Doors]) -> None:
    for project in ("own", "nowhere"):
        asked = {"project": project, "domain": DEV, "resource_type": 3}
        for door in people["stranger"].ways().values():
            assert door("GetProjectDomainAttributes", asked).code == DENIED
