"""Flux's jobspec as a plain job file: what Flux itself writes, and what is refused, by its place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from switchyard.errors import Malformed
from switchyard.model.jobspec.jobspec import from_jobspec, is_jobspec
from switchyard.sdk.transport.request import build_job_request
from tests.model.jobspecs import SLOT, SMALL, WHOLE


def changed(*path: str | int, to: Any, tasks: int | None = None) -> dict[str, Any]:
    """SMALL with one place changed; `...` removes it. `tasks`: so many in all."""
    form = copy.deepcopy(SMALL)
    if tasks is not None:
        form["tasks"][0]["count"] = {"total": tasks}
    inner: Any = form
    for step in path[:-1]:
        inner = inner[step]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return form


def test_what_flux_writes_becomes_a_plain_job() -> None:
    found = from_jobspec(WHOLE)
    assert found.plain == {
        "command": ["hostname"],
        "nodes": 2,
        "tasks": 4,
        "cores": 2,
        "gpus": 1,
        "time_limit": 600,
        "env": {"PATH": "/usr/bin:/bin"},
        "cwd": "/home/user",
    }
    assert found.notes == [
        "attributes.system.queue is left out",
        "attributes.system.shell.options is left out: rlimit",
        "attributes.system.x is left out",
    ]


def test_without_a_node_the_spread_is_free_and_no_duration_is_no_limit() -> None:
    assert from_jobspec(SMALL).plain == {"command": ["app"], "tasks": 10, "cores": 2}
    assert from_jobspec(SMALL).notes == []


def test_a_slot_may_say_that_it_has_no_gpu() -> None:
    held = [{"type": "core", "count": 2}, {"type": "gpu", "count": 0}]
    assert from_jobspec(changed("resources", 0, "with", to=held)).plain == from_jobspec(SMALL).plain


def test_fewer_tasks_than_slots() -> None:
    form = copy.deepcopy(WHOLE)
    form["resources"][0] = {"type": "node", "count": 4, "with": [{**SLOT, "count": 2}]}
    form["tasks"][0] |= {"slot": "s", "count": {"total": 5}}
    plain = from_jobspec(form).plain
    assert (plain["nodes"], plain["tasks"], plain["cores"]) == (4, 5, 2)


def test_name_and_a_command_of_one_word() -> None:
    form = changed("attributes", "system", to={"duration": 1.2, "job": {"name": "train", "x": 1}})
    form["tasks"][0]["command"] = "app with blanks"
    found = from_jobspec(form)
    assert found.plain == {"command": ["app with blanks"], "tasks": 10, "cores": 2, "name": "train", "time_limit": 2}
    assert found.notes == ["attributes.system.job.x is left out"]


def test_the_sdk_takes_it_where_it_takes_a_mapping_and_fields_are_laid_over_it() -> None:
    request = build_job_request(WHOLE, {"name": "again", "cores": 1})
    assert (request.name, request.spec.resources.cores, request.spec.resources.tasks) == ("again", 1, 4)
    assert request.spec.resources.time_limit == 600


@pytest.mark.parametrize(
    ("form", "plain"),
    [
        (changed("resources", to=[SLOT, {**SLOT, "label": "t"}]), {"tasks": 20, "cores": 2}),
        (changed("resources", to=[{"type": "rack", "count": 2, "with": [SLOT]}]), {"tasks": 20, "cores": 2}),
        (changed("resources", 0, "count", to={"min": 3, "max": 4}), {"tasks": 3, "cores": 2}),
        (
            changed(
                "resources", to=[{"type": "rack", "count": 1, "with": [{"type": "node", "count": 2, "with": [SLOT]}]}]
            ),
            {"tasks": 20, "nodes": 2, "cores": 2},
        ),
        (
            changed("resources", 0, "with", to=[{"type": "node", "count": 3, "with": [{"type": "core", "count": 4}]}]),
            {"tasks": 30, "nodes": 30, "cores": 4, "native": {"exclusive": True}},
        ),
        (changed("resources", 0, "count", to="2,4,8"), {"tasks": 2, "cores": 2}),
        (changed("resources", 0, "with", to=[{"type": "gpu", "count": 1}]), {"tasks": 10, "cores": 1, "gpus": 1}),
        (
            changed(
                "resources", 0, "with", to=[{"type": "core", "count": 1}, {"type": "memory", "count": 4, "unit": "GiB"}]
            ),
            {"tasks": 10, "cores": 1, "memory": 4 * 2**30},
        ),
        (changed("resources", 0, "with", 0, "with", to=[{"type": "pu", "count": 2}]), {"tasks": 10, "cores": 2}),
        (
            changed("resources", to=[{"type": "rack", "count": 2, "with": [SLOT]}], tasks=7),
            {"tasks": 7, "cores": 2},
        ),
    ],
)
def test_canonical_form_is_kept_as_the_demand(form: dict[str, Any], plain: dict[str, Any]) -> None:
    found = from_jobspec(form).plain
    demand = found.pop("demand")
    assert found == {"command": ["app"], **plain}
    assert demand["resources"] == form["resources"]
    assert "command" not in demand["tasks"][0]


def test_constraints_are_part_of_the_demand() -> None:
    form = changed("attributes", "system", "constraints", to={"properties": ["amd"]})
    assert from_jobspec(form).plain["demand"]["attributes"] == {"system": {"constraints": {"properties": ["amd"]}}}


RAINBOW: dict[str, Any] = {
    "version": 1,
    "name": "lammps",
    "resources": {
        "lmp": {
            "type": "node",
            "replicas": 2,
            "with": [{"type": "core", "count": 4, "requires": [{"name": "io", "field": "type", "match": "shm"}]}],
        },
        "unused": {"type": "node", "count": 7},
    },
    "tasks": [{"command": "lmp", "resources": "lmp"}],
}


def test_rainbows_dictionary_is_kept_as_the_demand() -> None:
    found = from_jobspec(RAINBOW).plain
    demand = found.pop("demand")
    assert found == {"command": ["lmp"], "name": "lammps", "tasks": 2, "nodes": 2, "cores": 4}
    assert demand == {**{k: RAINBOW[k] for k in ("version", "resources")}, "tasks": [{"resources": "lmp"}]}
    empty = {**RAINBOW, "resources": {}, "tasks": [{"command": "lmp"}]}
    assert from_jobspec(empty).plain["demand"]["resources"] == {}, "it fits everywhere"


CORE = {"type": "core", "count": 2}


@pytest.mark.parametrize(
    ("group", "plain"),
    [
        ({"type": "core", "count": 4}, {"tasks": 1, "cores": 4}),
        ({"type": "core", "replicas": 4}, {"tasks": 4, "cores": 1}),
        ({"type": "core", "count": 2, "replicas": 3}, {"tasks": 3, "cores": 2}),
        ({"type": "mine", "count": 2, "with": [CORE]}, {"tasks": 1, "cores": 4}),
        ({"type": "slot", "count": 3, "with": [CORE]}, {"tasks": 3, "cores": 2}),
        ({"type": "slot", "replicas": 3, "with": [CORE]}, {"tasks": 3, "cores": 2}),
        ({"type": "node"}, {"tasks": 1, "nodes": 1, "cores": 1}),
        ({"type": "node", "count": 1, "with": [CORE]}, {"tasks": 1, "nodes": 1, "cores": 2}),
        ({"type": "node", "count": 3, "with": [CORE]}, {"tasks": 3, "nodes": 3, "cores": 2}),
        ({"type": "node", "replicas": 3, "with": [CORE]}, {"tasks": 3, "nodes": 3, "cores": 2}),
        (
            {"type": "node", "replicas": 2, "with": [{"type": "slot", "count": 4, "with": [CORE]}]},
            {"tasks": 8, "nodes": 2, "cores": 2},
        ),
    ],
)
def test_a_group_of_rainbows_is_a_slot_of_its_units_and_the_task_names_it(group: Any, plain: dict[str, Any]) -> None:
    other = {"type": "core", "count": 7, "schedule": True}
    for resources, task in (
        ({"a": group}, {}),
        ({"a": group, "b": other}, {"resources": "a"}),
        ({"a": {**group, "schedule": True}, "b": {"type": "core", "count": 9}}, {}),
    ):
        form = {"version": 1, "resources": resources, "task": {"command": ["app"], **task}}
        found = from_jobspec(form).plain
        assert {name: found[name] for name in found if name not in ("command", "demand")} == plain


def deep(levels: int) -> dict[str, Any]:
    vertex: dict[str, Any] = {"type": "core", "count": 1}
    for _ in range(levels):
        vertex = {"type": "rack", "count": 1, "with": [vertex]}
    return vertex


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({**RAINBOW, "resources": {"a": 7}}, "resources.a: expected fields"),
        ({**RAINBOW, "resources": {"a": {"type": 7}}}, "resources.a.type: expected a text"),
        ({**RAINBOW, "resources": {"a": {"type": "core", "count": "x"}}}, "resources.a.count: 'x' is not a count"),
        ({**RAINBOW, "resources": {"a": {"type": "core", "count": 10**9}}}, "resources.a.count: expected a whole"),
        ({**RAINBOW, "resources": {"a": deep(1000)}}, "resources.a.with[0]"),
        ({**RAINBOW, "tasks": []}, "tasks: expected a list"),
        (
            {**RAINBOW, "tasks": [{"command": ["a"], "resources": "nosuch"}]},
            "tasks[0].resources: there is no group 'nosuch', only 'lmp', 'unused'",
        ),
        (
            {**RAINBOW, "tasks": [{"command": ["a"], "resources": ["lmp"]}]},
            "tasks[0].resources: there is no group ['lmp']",
        ),
        (
            {**RAINBOW, "tasks": [{"command": ["a"]}]},
            "tasks[0].resources: name the group that the task runs in: lmp, unused",
        ),
        ({**RAINBOW, "tasks": [{"command": 7}]}, "tasks[0].command: expected a list"),
        ({**RAINBOW, "tasks": [{"command": ["a"]}] * 2}, "tasks: a job runs one command"),
        ({**RAINBOW, "other": 1}, "other: not known here"),
        (
            {**RAINBOW, "attributes": {"system": {"constraints": {"properties": ["a"]}}}},
            "attributes.system.constraints: ",
        ),
        (changed("resources", to=[deep(1000)]), "resources[0]"),
    ],
)
def test_what_is_no_demand_is_refused_by_its_place(form: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as raised:
        from_jobspec(form, where="job.json")
    assert raised.value.detail.startswith(f"job.json: {says}"), raised.value.detail


@pytest.mark.parametrize(
    ("form", "is_one"),
    [
        (SMALL, True),
        ({"version": 2, "resources": []}, True),
        ({"version": 1, "attributes": {}}, True),
        ({"resources": [SLOT], "attributes": {}}, True),
        ({"tasks": [{"command": ["app"]}]}, True),
        ({"command": ["true"], "tasks": 2, "resources": {"cores": 1}}, False),
        ({"version": 1}, False),
        (["version", "resources"], False),
        (None, False),
    ],
)
def test_which_files_are_meant_as_a_jobspec(form: object, is_one: bool) -> None:
    assert is_jobspec(form) is is_one


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (changed("version", to=2), "version: this is version 2; known are 1, 999, 9999"),
        (changed("version", to=True), "version: this is version True"),
        (changed("version", to="1"), "version: this is version '1'"),
        (changed("extra", to=1), "extra: not known here"),
        (changed("resources", to=...), "resources: missing; a jobspec has"),
        (changed("resources", to=[]), "resources: expected a list with entries"),
        (changed("resources", 0, to="slot"), "resources[0]: expected fields, not 'slot'"),
        (changed("resources", 0, "type", to="rack"), "tasks[0].slot: there is no slot 's', nor any other"),
        (changed("resources", 0, "count", to=0), "resources[0].count: expected a whole number"),
        (changed("resources", 0, "count", to=True), "resources[0].count: expected a whole number"),
        (
            changed("resources", 0, "count", to=10**9),
            "resources[0].count: expected a whole number from 1 to 10,000,000",
        ),
        (changed("resources", 0, "label", to=...), "resources[0].label: a slot has a label"),
        (
            changed("resources", to=[{"type": "node", "count": 1, "with": [{"type": "socket", "count": 1}]}]),
            "tasks[0].slot: there is no slot 's', nor any other",
        ),
        (changed("tasks", to=...), "tasks: missing; a jobspec has"),
        (changed("tasks", to=[SMALL["tasks"][0]] * 2), "tasks: a job runs one command, these are 2"),
        (changed("tasks", 0, "slot", to="other"), "tasks[0].slot: there is no slot 'other', only 's'"),
        (
            changed("tasks", 0, "count", to={"per_slot": 1, "total": 1}),
            "tasks[0].count: give one of per_slot, per_resource, total",
        ),
        (changed("tasks", 0, "count", to={}), "tasks[0].count: give one of per_slot, per_resource, total"),
        (changed("tasks", 0, "count", to={"per_slot": 2}), "tasks[0].count.per_slot: 2 tasks in each slot; clusters"),
        (
            changed("tasks", 0, "count", to={"total": 11}),
            "tasks[0].count.total: 11 tasks in 10 slots; write a slot",
        ),
        (
            changed("tasks", 0, "count", to={"per_resource": {"type": "core", "count": 1}}),
            "tasks[0].count.per_resource: clusters start one task in each slot",
        ),
        (
            changed("resources", to=[{"type": "node", "count": 2, "with": [SLOT]}], tasks=1),
            "tasks[0].count.total: 1 tasks on 2 nodes",
        ),
        (
            changed("resources", to=[SLOT, {**SLOT, "label": "t"}], tasks=11),
            "tasks[0].count.total: 11 tasks in 10 slots",
        ),
        (changed("tasks", 0, "attributes", to={"environment": {"A": "1"}}), "tasks[0].attributes: it cannot be kept"),
        (changed("tasks", 0, "command", to=[]), "tasks[0].command: expected a list with entries"),
        (changed("tasks", 0, "command", to=["a", 1]), "tasks[0].command[1]: expected a text, not 1"),
        (changed("attributes", to=[]), "attributes: expected fields"),
        (changed("attributes", "system", "duration", to=-1), "attributes.system.duration: a number of seconds"),
        (changed("attributes", "system", "duration", to="1h"), "attributes.system.duration: a number of seconds"),
        (changed("attributes", "system", "duration", to=float("inf")), "attributes.system.duration: a number"),
        (changed("attributes", "system", "cwd", to=3), "attributes.system.cwd: expected a text"),
        (
            changed("attributes", "system", "environment", to={"A": 1}),
            "attributes.system.environment.A: expected a text",
        ),
        (
            changed("attributes", "system", "dependencies", to=[{"scheme": "after"}]),
            "attributes.system.dependencies: it bounds where or when",
        ),
        (
            changed("attributes", "system", "shell", to={"options": {"per-resource": {"type": "node"}}}),
            "attributes.system.shell.options.per-resource: it changes how many tasks",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(form: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as raised:
        from_jobspec(form, where="job.json")
    assert raised.value.detail.startswith(f"job.json: {says}"), raised.value.detail
    assert "RFC 25" in raised.value.next_step


@pytest.mark.parametrize(
    ("held", "fields"),
    [
        ([("gpu:h100", 2)], {"gpus": 2, "gpu_type": "h100"}),
        ([("gpu:h100", 1), ("gpu:a100", 1), ("gpu", 1)], {"gpus": 1, "devices": ["gpu:a100:1", "gpu:h100:1"]}),
        ([("fpga:u280", 2)], {"devices": ["fpga:u280:2"]}),
    ],
)
def test_types_in_a_jobspec_become_those_of_the_plain_fields(held: list[tuple[str, int]], fields: dict) -> None:
    inside = [{"type": "core", "count": 1}, *({"type": kind, "count": count} for kind, count in held)]
    slot = {"type": "slot", "count": 2, "label": "task", "with": inside}
    task = {"command": ["a"], "slot": "task", "count": {"per_slot": 1}}
    form = {"version": 1, "resources": [slot], "tasks": [task], "attributes": {}}
    plain = from_jobspec(form).plain
    assert {name: plain[name] for name in ("gpus", "gpu_type", "devices") if plain.get(name)} == fields
