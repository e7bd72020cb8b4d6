"""Ids, filters, schedules, tasks and launch plans: what passes and what is refused, in which words."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.admin import launch_plan_pb2
from flyteidl.core import identifier_pb2, tasks_pb2
from google.protobuf import json_format

from switchyard.errors import BadRequest, Malformed
from switchyard.features.flyte.workflow.compile.difference import describe_difference
from switchyard.features.flyte.workflow.compile.entity_id import EntityKind, id_mistakes
from switchyard.features.flyte.workflow.compile.launch_plan_checks import expected_inputs, launch_plan_mistakes
from switchyard.features.flyte.workflow.compile.task_checks import task_mistakes
from switchyard.features.flyte.workflow.lists.cron import cron_mistake
from switchyard.features.flyte.workflow.lists.filters import (
    ENTITY_COLUMNS,
    NAME_COLUMNS,
    read_filters,
    read_order,
    read_page,
)
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.features.flyte.workflow.values.nesting import check_task_depth
from tests.workflow.builders import INT, TEXT, enum, interface, list_of

IDS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"resource_type": 1}, ""),
    ({"resource_type": 2}, "unexpected resource type"),
    ({"resource_type": 99}, "unexpected resource type"),
    ({"project": ""}, "missing project"),
    ({"domain": ""}, "missing domain"),
    ({"name": ""}, "missing name"),
    ({"version": ""}, "missing version"),
    ({"name": "a.b-c_d/é 1"}, ""),
    ({"name": "a\nb"}, "control characters"),
    ({"name": "a\0b"}, "control characters"),
    ({"name": "a\u202eb"}, "control characters"),
    ({"name": "a" * 256}, "256 characters"),
    ({"version": "v" * 255}, ""),
    ({"version": "v" * 256}, "256 characters"),
    ({"version": "v\0"}, "control characters"),
    *(({"version": f"a{char}b"}, "url safe") for char in "!*'();:@&=+$,/?#[]"),
    ({"version": "R7ldX0-_.~Pw"}, ""),
]


@pytest.mark.parametrize(("fields", "mistake"), IDS)
def test_ids(fields: dict[str, Any], mistake: str) -> None:
    message = identifier_pb2.Identifier(**{"project": "p", "domain": "d", "name": "n", "version": "v"} | fields)
    found = "; ".join(id_mistakes(message, EntityKind.TASK))
    assert (mistake in found) if mistake else not found, found


GOOD_FILTERS: list[tuple[str, list[ListFilter]]] = [
    ("", []),
    ("eq(version,v1)", [ListFilter("version", "eq", ("v1",))]),
    ("eq(task.version, v1)", [ListFilter("version", "eq", ("v1",))]),
    (
        "value_in(name,a;b)+ne(type,sql)",
        [ListFilter("name", "value_in", ("a", "b")), ListFilter("type", "ne", ("sql",))],
    ),
    ("contains(name,f(x,y))", [ListFilter("name", "contains", ("f(x,y)",))]),
    ("gt(created_at,1970-01-01T00:00:01Z)", [ListFilter("created_us", "gt", (1_000_000,))]),
    ("lte(updated_at,1970-01-01T01:00:01+01:00)", [ListFilter("updated_us", "lte", (1_000_000,))]),
    ("eq(named_entity_metadata.state,1)", [ListFilter("name_state", "eq", (1,))]),
    ("eq(name,)", [ListFilter("name", "eq", ("",))]),
]
BAD_FILTERS = [
    *("version", "eq(version)", "eq(version,v1", "eq(colour,red)", "like(name,a)", "eq(workflow.name,a)", "+", "eq()"),
    *("eq(created_at,yesterday)", "eq(named_entity_metadata.state,x)", "contains(created_at,2)", "eq(name,a\0b)"),
    *("eq(created_at,99999-01-01T00:00:00Z)", "eq(state,1)", "eq(digest,1)", "eq(task.task.name,a)"),
    "+".join(["eq(name,a)"] * 51),
    f"value_in(name,{';'.join('a' * 101)})",
    f"eq(name,{'a' * 30_000})",
]


@pytest.mark.parametrize(("text", "wanted"), GOOD_FILTERS)
def test_filters(text: str, wanted: list[ListFilter]) -> None:
    assert list(read_filters(text, ENTITY_COLUMNS[EntityKind.TASK], "task")) == wanted


@pytest.mark.parametrize("text", BAD_FILTERS)
def test_a_filter_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_filters(text, ENTITY_COLUMNS[EntityKind.TASK], "task")


def test_filters_of_launch_plans_and_names() -> None:
    plans = ENTITY_COLUMNS[EntityKind.LAUNCH_PLAN]
    assert read_filters("eq(workflow.name,w)", plans, "launch_plan") == (ListFilter("workflow_name", "eq", ("w",)),)
    assert read_filters("eq(launch_plan.state,1)", plans, "launch_plan") == (ListFilter("state", "eq", (1,)),)
    assert read_filters("eq(state,0)", NAME_COLUMNS, "named_entity") == (ListFilter("name_state", "eq", (0,)),)


def test_orders_and_pages() -> None:
    columns = ENTITY_COLUMNS[EntityKind.WORKFLOW]
    assert read_order("", columns, "workflow", is_descending=True) is None
    assert read_order("workflow.created_at", columns, "workflow", is_descending=True) == ListOrder("created_us", True)
    assert read_page(5, "") == (5, 0)
    assert read_page(5, "10") == (5, 10)
    for limit, token in ((0, ""), (1, "x"), (1, "-1"), (1, "9" * 30), (1, "1\n")):
        with pytest.raises(BadRequest):
            read_page(limit, token)
    with pytest.raises(BadRequest, match="sort key"):
        read_order("digest", columns, "workflow", is_descending=True)


@pytest.mark.parametrize(
    "text",
    [
        *("* * * * *", "0 4 * * *", "*/10 0-5,7 1 jan-dec mon-fri", "0 0 ? * SUN", "0 0 1 1 7", "@daily", "hours"),
        *("@Weekly", "5/15 * * * *", " 0 0 * * * "),
    ],
)
def test_schedules(text: str) -> None:
    assert cron_mistake(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "@often"),
        *("a * * * *", "*/0 * * * *", "5-1 * * * *", "1- * * * *", "*-5 * * * *", "1,,2 * * * *", "-1 * * * *"),
        *("* * * * " + "1," * 1000, "\u0661 * * * *"),
    ],
)
def test_bad_schedules(text: str) -> None:
    assert cron_mistake(text)


def a_task(**changes: Any) -> Any:
    plain: dict[str, Any] = {
        "type": "python-task",
        "metadata": {"runtime": {"version": "1"}},
        "interface": {},
        "container": {"image": "i"},
    }
    for name, value in changes.items():
        plain[name] = value
    return json_format.ParseDict(
        {key: value for key, value in plain.items() if value is not None}, tasks_pb2.TaskTemplate()
    )


def resources(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> Any:
    def entries(amounts: dict[str, str] | None) -> list[dict[str, str]]:
        return [{"name": name, "value": value} for name, value in (amounts or {}).items()]

    return {"image": "i", "resources": {"requests": entries(requests), "limits": entries(limits)}}


def pod(**amounts: Any) -> Any:
    return {"pod_spec": {"containers": [{"name": "a", "resources": {"requests": amounts}}]}}


LIMITS = {"cpu": "500m", "memory": "1Gi", "gpu": "2"}
TASKS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"type": ""}, "missing type"),
    ({"metadata": None}, "missing metadata; missing runtime version"),
    ({"interface": None}, "missing interface"),
    ({"metadata": {"runtime": {}}}, "missing runtime version"),
    ({"container": {}}, "missing image"),
    ({"container": None}, "has no container and no pod; no plugin"),
    (
        {"container": None, "type": "bigquery", "sql": {"statement": "SELECT 1"}},
        "no container and no pod",
    ),
    ({"container": None, "k8s_pod": {}}, "missing pod_spec"),
    ({"interface": {"inputs": {"variables": {"x": {}}}}}, "input 'x' has no type"),
    ({"container": resources({"CPU": "500m"})}, ""),
    ({"container": resources({"CPU": "900m"})}, "cpu request [900m] is greater than the limit [500m]"),
    ({"container": resources(limits={"CPU": "900m"})}, "cpu limit [900m] is greater than the limit [500m]"),
    ({"container": resources({"CPU": "2m"}, {"CPU": "1m"})}, "greater than the task's own limit [1m]"),
    ({"container": resources({"MEMORY": "lots"})}, "Parsing of memory request failed"),
    ({"container": resources({"MEMORY": "9" * 60})}, "Parsing of memory request failed"),
    ({"container": resources({"GPU": "1.5"})}, "GPUs are whole"),
    ({"container": resources({"GPU": "1"}, {"GPU": "2"})}, "must equal the limit"),
    ({"container": resources({"GPU": "3"}, {"GPU": "3"})}, "gpu request [3] is greater"),
    ({"container": {"image": "i", "resources": {"requests": [{"name": "CPU", "value": "1m"}] * 2}}}, "multiple times"),
    ({"container": {"image": "i", "resources": {"requests": [{"name": 0, "value": "1"}]}}}, "unknown resource"),
    ({"container": None, "k8s_pod": pod(cpu="400m")}, ""),
    ({"container": None, "k8s_pod": pod(cpu=1)}, "cpu request [1] is greater"),
    ({"container": None, "k8s_pod": pod(**{"nvidia.com/gpu": "3"})}, "gpu request [3] is greater"),
    ({"container": None, "k8s_pod": {"pod_spec": {"containers": "none"}}}, ""),
    ({"container": None, "k8s_pod": pod(cpu={"a": 1})}, "Parsing of cpu request failed"),
]


@pytest.mark.parametrize(("changes", "mistake"), TASKS)
def test_tasks(changes: dict[str, Any], mistake: str) -> None:
    found = "; ".join(task_mistakes(a_task(**changes), LIMITS))
    assert (mistake in found) if mistake else not found, found


INPUTS = interface({"n": INT, "word": TEXT, "colour": enum("red"), "at": {"simple": "DATETIME"}}).inputs.variables
NUMBER, WORD = {"scalar": {"primitive": {"integer": "1"}}}, {"scalar": {"primitive": {"string_value": "x"}}}
FIXED_ALL = {
    "fixed_inputs": {
        "literals": {"n": NUMBER, "word": WORD, "colour": {"scalar": {"primitive": {"string_value": "red"}}}}
    }
}
DAILY = {"entity_metadata": {"schedule": {"cron_schedule": {"schedule": "@daily"}, "kickoff_time_input_arg": "at"}}}


def default(name: str, kind: dict[str, Any], literal: dict[str, Any]) -> dict[str, Any]:
    return {"default_inputs": {"parameters": {name: {"var": {"type": kind}, "default": literal}}}}


def notify(**fields: Any) -> dict[str, Any]:
    return {"entity_metadata": {"notifications": [fields]}}


PLANS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"fixed_inputs": {"literals": {"n": NUMBER}}}, ""),
    ({"fixed_inputs": {"literals": {"z": NUMBER}}}, "unexpected fixed_input z"),
    ({"fixed_inputs": {"literals": {"n": WORD}}}, "invalid fixed_input wrong type n"),
    ({"fixed_inputs": {"literals": {"n": {}}}}, "fixed_input n has no value"),
    ({"fixed_inputs": {"literals": {"colour": WORD}}}, "is none of ['red']"),
    (default("n", {"simple": "INTEGER"}, NUMBER), ""),
    (default("n", {"simple": "INTEGER"}, WORD), "invalid default_input wrong type n"),
    (default("n", {"simple": "STRING"}, NUMBER), "invalid default_input wrong type n"),
    (default("z", {"simple": "STRING"}, WORD), "unexpected default_input z"),
    (
        default("n", {"simple": "INTEGER"}, NUMBER) | {"fixed_inputs": {"literals": {"n": NUMBER}}},
        "both a default and a fixed",
    ),
    ({"labels": {"values": {"team": "a", "example.com/x": ""}}}, ""),
    ({"labels": {"values": {"a b": "c"}}}, "invalid label key [a b]"),
    ({"labels": {"values": {"A/b/c": "c"}}}, "invalid label key"),
    ({"labels": {"values": {"a": "-"}}}, "invalid label value [-]"),
    (FIXED_ALL | DAILY, ""),
    (DAILY, "unbound required input. [n] is required"),
    (FIXED_ALL | {"entity_metadata": {"schedule": {"cron_schedule": {"schedule": "@daily"}}}}, "[at] is required"),
    (
        FIXED_ALL
        | {"entity_metadata": {"schedule": {"cron_schedule": {"schedule": "x"}, "kickoff_time_input_arg": "at"}}},
        "no cron schedule",
    ),
    (
        FIXED_ALL | {"entity_metadata": {"schedule": {"rate": {"value": 0}, "kickoff_time_input_arg": "at"}}},
        "a rate has a value",
    ),
    (
        FIXED_ALL
        | {"entity_metadata": {"schedule": {"rate": {"value": 2**32 - 1, "unit": 2}, "kickoff_time_input_arg": "at"}}},
        "a rate is at most 36525 days",
    ),
    (FIXED_ALL | {"entity_metadata": {"schedule": {"rate": {"value": 5}, "kickoff_time_input_arg": "at"}}}, ""),
    (FIXED_ALL | {"entity_metadata": {"schedule": {"rate": {"value": 5}, "kickoff_time_input_arg": "n"}}}, "not free"),
    (
        {"entity_metadata": {"schedule": {"rate": {"value": 5}, "kickoff_time_input_arg": "n"}}},
        "must reference a datetime",
    ),
    (
        FIXED_ALL
        | {"entity_metadata": {"schedule": {"cron_expression": "0 4 * * ? *", "kickoff_time_input_arg": "at"}}},
        "",
    ),
    (notify(phases=["SUCCEEDED"], email={"recipients_email": ["a@b"]}), ""),
    (notify(phases=["RUNNING"], email={"recipients_email": ["a@b"]}), "not terminal"),
    (notify(phases=["FAILED"], slack={}), "missing recipients"),
    (notify(email={"recipients_email": ["a@b"]}), "missing phases"),
    (notify(phases=["FAILED"]), "no type"),
]


@pytest.mark.parametrize(("plain", "mistake"), PLANS)
def test_launch_plans(plain: dict[str, Any], mistake: str) -> None:
    spec = json_format.ParseDict(plain, launch_plan_pb2.LaunchPlanSpec())
    found = "; ".join(launch_plan_mistakes(spec, INPUTS))
    assert (mistake in found) if mistake else not found, found


def test_expected_inputs_are_the_defaults_and_what_is_left_but_nothing_fixed() -> None:
    plain = default("n", {"simple": "INTEGER"}, NUMBER) | {"fixed_inputs": {"literals": {"word": WORD}}}
    made = expected_inputs(json_format.ParseDict(plain, launch_plan_pb2.LaunchPlanSpec()), INPUTS).parameters
    assert {name: made[name].WhichOneof("behavior") for name in made} == {
        "n": "default",
        "colour": "required",
        "at": "required",
    }


def test_a_difference_names_the_places() -> None:
    before, after = (
        a_task(container={"image": "a", "args": ["x"]}),
        a_task(container={"image": "b", "args": ["x", "y"]}),
    )
    assert describe_difference(before, before) == ""
    assert describe_difference(before, after) == "container.args[1]: nothing → 'y'; container.image: 'a' → 'b'"
    many = a_task(config={f"k{number}": "x" * 500 for number in range(100)})
    text = describe_difference(a_task(container={"image": "z"}), many)
    assert len(text) < 1000
    names = a_task(interface={"inputs": {"variables": {f"v{number}": {} for number in range(100)}}})
    assert describe_difference(a_task(interface={"inputs": {"variables": {"w": {}}}}), names).endswith("; and more")


def test_what_a_client_could_not_read_back_is_refused() -> None:
    kind = INT
    for _ in range(80):
        kind = list_of(kind)
    task = a_task()
    task.interface.CopyFrom(interface({"x": kind}))
    check_task_depth(task)
    for _ in range(15):
        kind = list_of(kind)
    task.interface.CopyFrom(interface({"x": kind}))
    with pytest.raises(Malformed, match="nested too deeply"):
        check_task_depth(task)
