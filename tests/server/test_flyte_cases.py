"""What Flyte answers, call by call, at both doors: the golden cases with our answer, and bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.server.flyte_doors import LABELS, Doors, Said, opened

pytestmark = pytest.mark.xdist_group("flyte-cases")
Ask = Callable[[str, Mapping[str, Any]], Said]
DEV = "development"
LABEL, TASK = "EXECUTION_CLUSTER_LABEL", "TASK_RESOURCE"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    database = None if request.param == "sqlite" else request.getfixturevalue("postgres").create_database()
    with opened(tmp_path_factory.mktemp("doors"), database=database) as made:
        yield made


@pytest.fixture(params=["rest", "grpc"])
def ask(request: pytest.FixtureRequest, doors: Doors) -> Ask:
    return doors.ways()[request.param]


def at(project: str, domain: str = DEV, **fields: Any) -> dict[str, Any]:
    return {"attributes": {"project": project, "domain": domain, **fields}}


def label(value: str) -> dict[str, Any]:
    return {"matching_attributes": {"execution_cluster_label": {"value": value}}}


def cpu(value: str) -> dict[str, Any]:
    return {"matching_attributes": {"task_resource_attributes": {"defaults": {"cpu": value}}}}


# --- attributes.validate

INVALID: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "attr-val-03",
        "UpdateProjectDomainAttributes",
        at("nope"),
        "failed to validate that project [nope] and domain [development] are registered, err: [",
    ),
    ("archived", "UpdateProjectDomainAttributes", at("OLD", **label("P")), "project [OLD] is not active"),
    ("archived, read", "GetProjectDomainAttributes", {"project": "OLD", "domain": DEV}, "project [OLD] is not active"),
    (
        "archived, delete",
        "DeleteProjectDomainAttributes",
        {"project": "OLD", "domain": DEV},
        "project [OLD] is not active",
    ),
    (
        "archived, project",
        "UpdateProjectAttributes",
        {"attributes": {"project": "OLD", **label("P")}},
        "project [OLD] is not active",
    ),
    (
        "unknown domain",
        "UpdateProjectDomainAttributes",
        at("P", "nowhere", **label("P")),
        "domain [nowhere] is unrecognized by system",
    ),
    (
        "unknown domain, read",
        "GetWorkflowAttributes",
        {"project": "P", "domain": "nowhere", "workflow": "w"},
        "domain [nowhere] is unrecognized by system",
    ),
    ("attr-val-05", "UpdateWorkflowAttributes", at("P"), "missing name"),
    ("attr-val-06", "UpdateProjectDomainAttributes", at("P"), "missing matching_attributes"),
    (
        "no kind",
        "UpdateProjectDomainAttributes",
        at("P", matching_attributes={}),
        "Unrecognized matching attributes type for request P-development",
    ),
    (
        "no kind, workflow",
        "UpdateWorkflowAttributes",
        at("P", workflow="w", matching_attributes={}),
        "Unrecognized matching attributes type for request P-development-w",
    ),
    ("attr-val-16", "ListMatchableAttributes", {"resource_type": 44}, "invalid value for resource_type"),
    (
        "unknown project, project level",
        "UpdateProjectAttributes",
        {"attributes": {"project": "nope", **label("P")}},
        "failed to validate that project [nope] is registered, err: [",
    ),
    (
        "unknown project, read",
        "GetProjectAttributes",
        {"project": "nope"},
        "failed to validate that project [nope] exists, err: [",
    ),
    (
        "unknown type, delete",
        "DeleteProjectDomainAttributes",
        {"project": "P", "domain": DEV, "resource_type": 44},
        "invalid value for resource_type",
    ),
]


@pytest.mark.parametrize(("name", "request_", "said"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
def test_a_mistake_is_said_in_flytes_words(
    doors: Doors, ask: Ask, name: str, request_: dict[str, Any], said: str
) -> None:
    names = {"P": doors.fresh(), "OLD": doors.archived()}
    for word, project in names.items():
        said = said.replace(f"[{word}]", f"[{project}]").replace(f" {word}-", f" {project}-")
    reply = ask(name, replaced(request_, names))
    assert reply.code == "INVALID_ARGUMENT"
    assert reply.message.startswith(said)
    assert said.endswith("[") or reply.message == said


def test_attr_val_01_an_update_without_attributes(doors: Doors) -> None:
    """The path of a REST call names the scope, so there the attributes lack only what they say."""
    named = {"project": doors.fresh(), "domain": DEV, "workflow": "w"}
    for words, level in enumerate(("Project", "ProjectDomain", "Workflow"), start=1):
        name = f"Update{level}Attributes"
        assert doors.by_grpc(name, {}) == Said("INVALID_ARGUMENT", "missing attributes")
        reply = doors.by_rest(name, {"attributes": dict(list(named.items())[:words])})
        assert reply == Said("INVALID_ARGUMENT", "missing matching_attributes")


def replaced(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: replaced(inner, names) for key, inner in value.items()}
    return names.get(value, value) if isinstance(value, str) else value


def test_attr_val_08_a_quality_of_service_is_written_here(doors: Doors, ask: Ask) -> None:
    """Flyte refuses it, for want of a way to store it."""
    project = doors.fresh()
    given = {"quality_of_service": {"tier": "HIGH"}}
    assert ask("UpdateProjectDomainAttributes", at(project, matching_attributes=given)).code == "OK"
    asked = {"project": project, "domain": DEV, "resource_type": "QUALITY_OF_SERVICE_SPECIFICATION"}
    assert ask("GetProjectDomainAttributes", asked).answer["attributes"]["matching_attributes"] == given


KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("task", TASK, {"task_resource_attributes": {"limits": {"cpu": "2"}}}),
    ("attr-val-10", "CLUSTER_RESOURCE", {"cluster_resource_attributes": {"attributes": {"bar": "baz"}}}),
    ("attr-val-11", "EXECUTION_QUEUE", {"execution_queue_attributes": {"tags": ["bar", "baz"]}}),
    ("label", LABEL, {"execution_cluster_label": {"value": "W"}}),
    (
        "attr-val-13",
        "PLUGIN_OVERRIDE",
        {"plugin_overrides": {"overrides": [{"task_type": "python", "plugin_id": ["foo"]}]}},
    ),
    ("config", "WORKFLOW_EXECUTION_CONFIG", {"workflow_execution_config": {"max_parallelism": 7}}),
    ("attr-val-15", "CLUSTER_ASSIGNMENT", {"cluster_assignment": {"cluster_pool_name": "gpu"}}),
]


@pytest.mark.parametrize(("kind", "given"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS])
def test_the_kind_is_what_is_set(doors: Doors, ask: Ask, kind: str, given: dict[str, Any]) -> None:
    project = doors.fresh()
    assert ask("UpdateProjectDomainAttributes", at(project, matching_attributes=given)).code == "OK"
    reply = ask("GetProjectDomainAttributes", {"project": project, "domain": DEV, "resource_type": kind})
    assert reply.answer["attributes"] == {"project": project, "domain": DEV, "matching_attributes": given}
    listed = ask("ListMatchableAttributes", {"resource_type": kind}).answer["configurations"]
    assert {"project": project, "domain": DEV, "attributes": given} in listed


def test_attr_val_18_the_project_level_of_an_archived_project_can_be_read(doors: Doors, ask: Ask) -> None:
    assert ask("GetProjectAttributes", {"project": doors.archived(), "resource_type": TASK}).code == "NOT_FOUND"


# --- attributes.resolve, .get, .list


def rows_of_all_levels(doors: Doors) -> str:
    project = doors.fresh()
    scope = {"project": project, "domain": DEV, "workflow": "w", "launch_plan": "l"}
    for value, words in (("L", 4), ("W", 3), ("PD", 2), ("P", 1)):
        doors.put("execution-cluster-label", {"value": value}, **dict(list(scope.items())[:words]))
    return project


def test_attr_res_the_most_specific_row_answers_whole_with_its_own_scope(doors: Doors, ask: Ask) -> None:
    project = rows_of_all_levels(doors)

    def got(name: str, **asked: str) -> Any:
        said = ask(name, {"project": project, "resource_type": LABEL, **asked})
        attributes = said.answer["attributes"]
        return attributes.pop("matching_attributes")["execution_cluster_label"]["value"], attributes

    here = {"project": project, "domain": DEV}
    # attr-res-01 asks with a launch plan, which no call of Flyte's can.
    assert got("GetWorkflowAttributes", domain=DEV, workflow="w") == ("W", here | {"workflow": "w"})
    assert got("GetWorkflowAttributes", domain=DEV, workflow="other") == ("PD", here)  # attr-res-03
    assert got("GetWorkflowAttributes", domain="staging", workflow="w") == ("P", {"project": project})  # attr-res-05
    assert got("GetProjectDomainAttributes", domain=DEV) == ("PD", here)
    assert got("GetProjectDomainAttributes", domain="staging") == ("P", {"project": project})
    assert got("GetProjectAttributes") == ("P", {"project": project})
    other = ask("GetProjectDomainAttributes", {"project": doors.fresh(), "domain": DEV, "resource_type": LABEL})
    assert other.code == "NOT_FOUND"  # attr-res-06


def test_attr_res_08_nothing_named_is_no_question(doors: Doors) -> None:
    assert doors.by_grpc("GetProjectDomainAttributes", {"resource_type": LABEL}).code == "INVALID_ARGUMENT"


def test_attr_get_01_the_echoed_scope_is_the_rows(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    ask("UpdateProjectDomainAttributes", at(project, **cpu("1")))
    asked = {"project": project, "domain": DEV, "workflow": "workflow", "resource_type": TASK}
    wanted = {"project": project, "domain": DEV, **cpu("1")}
    assert ask("GetWorkflowAttributes", asked).answer == {"attributes": wanted}


NOT_FOUND: list[tuple[str, dict[str, Any], str]] = [
    ("GetProjectDomainAttributes", {"resource_type": TASK}, "Domain:development Workflow: LaunchPlan: {}" + TASK),
    (
        "GetWorkflowAttributes",
        {"resource_type": 3, "workflow": "w"},
        "Domain:development Workflow:w LaunchPlan: {}" + LABEL,
    ),
    ("GetProjectAttributes", {"resource_type": "EXECUTION_QUEUE"}, "Domain: Workflow: LaunchPlan: {}EXECUTION_QUEUE"),
    ("GetProjectDomainAttributes", {"resource_type": 44}, "Domain:development Workflow: LaunchPlan: {}44"),
]


@pytest.mark.parametrize(("name", "asked", "said"), NOT_FOUND)
def test_attr_get_03_and_05_what_is_not_there_is_said_as_flyte_does(
    doors: Doors, ask: Ask, name: str, asked: dict[str, Any], said: str
) -> None:
    project = doors.fresh()
    domain = {} if name == "GetProjectAttributes" else {"domain": DEV}
    reply = ask(name, {"project": project, **domain, **asked})
    at_ = said.format("ResourceType:")
    assert reply == Said("NOT_FOUND", f"Resource [{{Project:{project} {at_}}}] not found")


def test_attr_get_06_the_execution_config_of_a_project_is_filled_from_the_platform(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    asked = {"project": project, "resource_type": "WORKFLOW_EXECUTION_CONFIG"}

    def config() -> Any:
        return ask("GetProjectAttributes", asked).answer["attributes"]["matching_attributes"][
            "workflow_execution_config"
        ]

    platform = {"max_parallelism": 3, "security_context": {"run_as": {"iam_role": "myrole"}}}
    assert config() == platform
    own = {"workflow_execution_config": {"max_parallelism": 9, "interruptible": False}}
    ask("UpdateProjectAttributes", {"attributes": {"project": project, "matching_attributes": own}})
    assert config() == platform | {"max_parallelism": 9, "interruptible": False}
    # The stored row is its own, as the other calls show.
    nearest = ask("GetProjectDomainAttributes", asked | {"domain": DEV}).answer["attributes"]
    assert nearest == {"project": project, "matching_attributes": own}


def test_attr_list_01_the_most_specific_first_and_our_levels_among_them(doors: Doors, ask: Ask) -> None:
    project = rows_of_all_levels(doors)
    rows = ask("ListMatchableAttributes", {"resource_type": LABEL}).answer["configurations"]
    mine = [row for row in rows if row.get("project") == project]
    assert [row.pop("attributes")["execution_cluster_label"]["value"] for row in mine] == ["L", "W", "PD", "P"]
    launch_plan = {"project": project, "domain": DEV, "workflow": "w", "launch_plan": "l"}
    assert [len(row) for row in mine] == [4, 3, 2, 1]
    assert mine[0] == launch_plan


def test_a_row_of_a_domain_is_listed_and_is_the_answer_where_nothing_else_is(doors: Doors) -> None:
    doors.put("execution-cluster-label", {"value": "D"}, domain="production")
    project = doors.fresh()
    wanted = {"execution_cluster_label": {"value": "D"}}
    for ask in doors.ways().values():
        rows = ask("ListMatchableAttributes", {"resource_type": LABEL}).answer["configurations"]
        assert rows[-1] == {"domain": "production", "attributes": wanted}
        asked = {"project": project, "domain": "production", "resource_type": LABEL}
        attributes = ask("GetProjectDomainAttributes", asked).answer["attributes"]
        assert attributes == {"domain": "production", "matching_attributes": wanted}


# --- attributes.update, .delete


def test_attr_upd_01_a_row_is_replaced_whole(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    for given in ({"key": "value", "other": "x"}, {"key": "value2"}):
        kind = {"cluster_resource_attributes": {"attributes": given}}
        assert ask("UpdateProjectDomainAttributes", at(project, matching_attributes=kind)).code == "OK"
    rows = ask("ListMatchableAttributes", {"resource_type": "CLUSTER_RESOURCE"}).answer["configurations"]
    mine = [row["attributes"] for row in rows if row.get("project") == project]
    assert mine == [{"cluster_resource_attributes": {"attributes": {"key": "value2"}}}]


def overrides(**given: str) -> dict[str, Any]:
    rows = [{"task_type": kind, "plugin_id": [plugin]} for kind, plugin in given.items()]
    return {"plugin_overrides": {"overrides": rows}}


def override_rows(ask: Ask, project: str) -> dict[str, dict[str, str]]:
    """By scope: the plugin of each task type."""
    rows = ask("ListMatchableAttributes", {"resource_type": "PLUGIN_OVERRIDE"}).answer.get("configurations", [])
    plugins_by_scope = {}
    for row in rows:
        if row["project"] == project:
            at_ = "/".join(row[word] for word in ("domain", "workflow") if word in row)
            listed = row["attributes"]["plugin_overrides"]["overrides"]
            plugins_by_scope[at_] = {row["task_type"]: row["plugin_id"][0] for row in listed}
    return plugins_by_scope


def test_attr_upd_02_plugin_overrides_are_added_by_task_type(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    for given in (overrides(python="plugin_a", hive="plugin_b"), overrides(sidecar="plugin_c", hive="plugin_d")):
        assert ask("UpdateProjectDomainAttributes", at(project, matching_attributes=given)).code == "OK"
    merged = {"python": "plugin_a", "sidecar": "plugin_c", "hive": "plugin_d"}
    assert override_rows(ask, project) == {DEV: merged}


def test_attr_upd_04_an_override_stays_at_its_own_level(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    ask("UpdateWorkflowAttributes", at(project, workflow="w", matching_attributes=overrides(hive="b")))
    ask("UpdateProjectDomainAttributes", at(project, matching_attributes=overrides(python="a")))
    only = {"attributes": {"project": project, "matching_attributes": overrides(hive="c")}}
    assert ask("UpdateProjectAttributes", only).code == "OK", "which fails in Flyte"
    assert override_rows(ask, project) == {f"{DEV}/w": {"hive": "b"}, DEV: {"python": "a"}, "": {"hive": "c"}}


def test_attr_del_01_deleting_what_is_not_there_succeeds(doors: Doors, ask: Ask) -> None:
    asked = {"project": doors.fresh(), "domain": DEV, "resource_type": TASK}
    assert ask("DeleteProjectDomainAttributes", asked) == Said("OK")


def test_attr_del_03_a_delete_touches_exactly_its_row(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    ask("UpdateProjectAttributes", {"attributes": {"project": project, **cpu("1")}})
    for domain in (DEV, "staging"):
        ask("UpdateProjectDomainAttributes", at(project, domain, **cpu("2")))
    ask("UpdateWorkflowAttributes", at(project, workflow="w", **cpu("3")))

    def left() -> list[str]:
        rows = ask("ListMatchableAttributes", {"resource_type": TASK}).answer.get("configurations", [])
        mine = [row for row in rows if row.get("project") == project]
        return ["/".join(row[word] for word in ("domain", "workflow") if word in row) for row in mine]

    assert ask("DeleteProjectAttributes", {"project": project}) == Said("OK")
    assert left() == [f"{DEV}/w", DEV, "staging"]
    assert ask("DeleteProjectDomainAttributes", {"project": project, "domain": DEV, "resource_type": 0}) == Said("OK")
    assert left() == [f"{DEV}/w", "staging"]
    ask("DeleteWorkflowAttributes", {"project": project, "domain": DEV, "workflow": "w"})
    assert left() == ["staging"]


def test_an_empty_project_reaches_no_row_of_any(doors: Doors) -> None:
    """In Flyte it reaches all of them."""
    project = doors.fresh()
    doors.by_grpc("UpdateProjectDomainAttributes", at(project, **cpu("1")))
    for name, asked in (
        ("DeleteProjectDomainAttributes", {"domain": DEV}),
        ("UpdateProjectDomainAttributes", at("", **cpu("9"))),
        ("DeleteProjectAttributes", {}),
    ):
        assert doors.by_grpc(name, asked).code == "INVALID_ARGUMENT"
    asked = {"project": project, "domain": DEV}
    assert doors.by_grpc("GetProjectDomainAttributes", asked).answer["attributes"] == asked | cpu("1")


def test_the_last_writer_wins_and_the_history_knows_both(doors: Doors, ask: Ask) -> None:
    project = doors.fresh()
    for value in LABELS[:2]:
        assert ask("UpdateProjectDomainAttributes", at(project, **label(value))).code == "OK"
    path = f"/v1/attributes/execution-cluster-label/history?project={project}&domain={DEV}"
    entries = doors.v1("GET", path)["items"]
    assert [(entry.get("before"), entry["after"]) for entry in entries] == [
        ({"value": "P"}, {"value": "PD"}),
        (None, {"value": "P"}),
    ]
    assert {entry["actor"] for entry in entries} == {"local-admin"}
