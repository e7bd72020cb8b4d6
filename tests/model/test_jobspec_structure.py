"""The structure of RFC 14's jobspecs: the same on the command line, in the API and for Rainbow's clients."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from switchyard.errors import Malformed
from switchyard.model.jobspec.jobspec import from_jobspec
from switchyard.model.jobspec.structure import check_canonical
from switchyard.service.lifecycle.demands import check_demand, check_jobspec, demand_of_any_jobspec

GOOD: dict[str, Any] = {
    "version": 9999,
    "resources": [{"type": "slot", "count": 1, "label": "s", "with": [{"type": "node", "count": 1}]}],
    "tasks": [{"command": ["app"], "slot": "s", "count": {"per_slot": 1}}],
    "attributes": None,
}


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """GOOD with one place changed; `...` removes it."""
    form = copy.deepcopy(GOOD)
    inner: Any = form
    for step in path[:-1]:
        inner = inner[step]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return form


def ranged(**count: Any) -> dict[str, Any]:
    return changed("resources", 0, "count", to=count)


def constrained(constraints: Any) -> dict[str, Any]:
    return changed("attributes", to={"system": {"duration": 1, "constraints": constraints}})


VERTEX = ("resources", 0)
TASK = ("tasks", 0)
BAD = [
    # jobspec, the complaint
    (changed("version", to=...), "version: missing; a jobspec has version, resources, tasks and attributes"),
    (changed("resources", to=...), "resources: missing"),
    (changed("tasks", to=...), "tasks: missing"),
    (changed("attributes", to=...), "attributes: missing"),
    (changed("version", to=48958), "version: this is version 48958; known are 1, 999, 9999"),
    (changed("version", to={"foo": 1}), "version: this is version {"),
    (changed("version", to=True), "version: this is version True"),
    (changed("version", to=1.0), "version: this is version 1.0"),
    (changed("version", to="1"), "version: this is version '1'"),
    (changed("extra", to=1), "extra: not known here"),
    (changed("resources", to=[]), "resources: expected a list with entries"),
    (changed("resources", to="slot"), "resources: expected a list of resources, not 'slot'"),
    (changed("resources", to=GOOD["resources"][0]), "resources: expected a list of resources, or named groups"),
    (changed(*VERTEX, to=[{"type": "slot"}]), "resources[0]: expected fields"),
    (changed(*VERTEX, "type", to=...), "resources[0].type: expected a text, not nothing"),
    (changed(*VERTEX, "type", to=["slot"]), "resources[0].type: expected a text"),
    (changed(*VERTEX, "type", to=""), "resources[0].type: a type is a text"),
    (changed(*VERTEX, "type", to="xor_slot"), "resources[0].type: xor_slot is not supported"),
    (changed(*VERTEX, "count", to=...), "resources[0].count: missing; a resource has a type and a count"),
    (changed(*VERTEX, "with", 0, "count", to=...), "resources[0].with[0].count: missing"),
    (changed(*VERTEX, "count", to=0), "resources[0].count: expected a whole number from 1"),
    (changed(*VERTEX, "with", 0, to={"type": "gpu", "count": -1}), "with[0].count: expected a whole number from 1"),
    (changed(*VERTEX, "with", 0, to={"type": "core", "count": 0}), "with[0].count: expected a whole number from 1"),
    (changed(*VERTEX, "count", to=[1, 2]), "resources[0].count: expected a whole number"),
    (changed(*VERTEX, "count", to="bar"), "resources[0].count: 'bar' is not a count"),
    (changed(*VERTEX, "count", to="2x"), "resources[0].count: '2x' is not a count"),
    (ranged(min=1, operator="+", operand=1), "resources[0].count: operator and operand need a max"),
    (ranged(max=2, operator="+", operand=1), "resources[0].count.min: expected a whole number"),
    (ranged(min=1, max=2, operator="+"), "resources[0].count: operator and operand come together"),
    (ranged(min=1, max=2, operand=1), "resources[0].count: operator and operand come together"),
    (ranged(min=1, max=4, operator="/", operand=2), "resources[0].count: '/' is not one of + * ^"),
    (ranged(min=1, max=4, operator="+", operand=0), "resources[0].count.operand: expected a whole number"),
    (ranged(min=1, max=4, operator="*", operand=1), "resources[0].count: with * and 1 a range from 1 never grows"),
    (ranged(min=1, max=4, operator="^", operand=2), "resources[0].count: with ^ and 2 a range from 1 never grows"),
    (ranged(min=3, max=2, operator="+", operand=1), "resources[0].count: the range is backwards"),
    (ranged(min=1, max=-1, operator="+", operand=1), "resources[0].count.max: expected a whole number"),
    (changed(*VERTEX, "exclusive", to="yes"), "resources[0].exclusive: expected true or false, not 'yes'"),
    (changed(*VERTEX, "exclusive", to=[True]), "resources[0].exclusive: expected true or false"),
    (changed(*VERTEX, "id", to=["a", "b"]), "resources[0].id: expected a text"),
    (changed(*VERTEX, "unit", to=["a", "b"]), "resources[0].unit: expected a text"),
    (changed(*VERTEX, "label", to=["a", "b"]), "resources[0].label: expected a text"),
    (changed(*VERTEX, "label", to=...), "resources[0].label: a slot has a label"),
    (changed(*VERTEX, "label", to=""), "resources[0].label: a slot has a label"),
    (changed(*VERTEX, "with", to=...), "resources[0].with: a slot holds at least one resource"),
    (changed(*VERTEX, "with", to=[]), "resources[0].with: expected a list with entries"),
    (changed(*VERTEX, "with", to={"type": "node"}), "resources[0].with: expected a list with entries"),
    (changed(*VERTEX, "of", to=1), "resources[0].of: not known here"),
    (changed("tasks", to=[]), "tasks: expected a list with entries"),
    (changed("tasks", to={"command": ["app"]}), "tasks: expected a list with entries"),
    (changed(*TASK, to=["app"]), "tasks[0]: expected fields"),
    (changed(*TASK, "command", to=...), "tasks[0].command: missing; a task has a command, a slot and a count"),
    (changed(*TASK, "slot", to=...), "tasks[0].slot: missing"),
    (changed(*TASK, "count", to=...), "tasks[0].count: missing"),
    (changed(*TASK, "command", to="app"), "tasks[0].command: expected a list with entries, not 'app'"),
    (changed(*TASK, "command", to=[]), "tasks[0].command: expected a list with entries"),
    (changed(*TASK, "command", to=["app", 1]), "tasks[0].command[1]: expected a text, not 1"),
    (changed(*TASK, "slot", to=1), "tasks[0].slot: expected a text"),
    (changed(*TASK, "count", to=1), "tasks[0].count: expected fields"),
    (changed(*TASK, "count", to={}), "tasks[0].count: give one of"),
    (changed(*TASK, "count", to={"per_slot": 1, "total": 1}), "tasks[0].count: give one of"),
    (changed(*TASK, "count", to={"per_slot": 0}), "tasks[0].count.per_slot: expected a whole number"),
    (changed(*TASK, "count", to={"per_resource": {"count": 1}}), "tasks[0].count.per_resource.type: expected a text"),
    (changed(*TASK, "count", to={"per_resource": 1}), "tasks[0].count.per_resource: expected fields"),
    (changed("attributes", to=1), "attributes: expected fields, not 1"),
    (changed("attributes", to={"system": {}, "foo": 1}), "attributes.foo: not known here"),
    (changed("attributes", to={"system": 1}), "attributes.system: expected fields"),
    (changed("attributes", to={"system": {"duration": -1}}), "attributes.system.duration: a number of seconds, or 0"),
    (changed("attributes", to={"system": {"duration": "1h"}}), "attributes.system.duration: a number of seconds"),
    (constrained({"properties": "foo"}), "attributes.system.constraints.properties: expected a list"),
    (constrained({"properties": ["fo`o"]}), "'fo`o' is not the name of a property"),
    (constrained({"ranks": [True]}), "attributes.system.constraints.ranks: expected a list of texts"),
    (constrained({"ranks": [-1]}), "attributes.system.constraints.ranks: "),
]  # fmt: skip


@pytest.mark.parametrize(("form", "says"), BAD)
def test_a_bad_jobspec_is_refused_alike_everywhere(form: dict[str, Any], says: str) -> None:
    for read in (from_jobspec, check_jobspec):
        with pytest.raises(Malformed) as raised:
            read(form)
        assert raised.value.detail.startswith("the jobspec: "), raised.value.detail
        assert says in raised.value.detail


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (
            changed("resources", to=GOOD["resources"] * 2),
            "resources[1].label: there is another resource with the label",
        ),
        (changed(*TASK, "slot", to="t"), "tasks[0].slot: there is no slot 't', only 's'"),
        (changed(*VERTEX, to={"type": "node", "count": 1}), "tasks[0].slot: there is no slot 's', nor any other"),
        (changed(*TASK, "count", to={"per_resource": {"type": "node", "count": 2}}), "tasks[0].count.per_resource: "),
        (changed(*TASK, "count", to={"per_slot": 2}), "tasks[0].count.per_slot: "),
    ],
)
def test_a_job_that_runs_names_a_slot_and_can_have_its_tasks(form: dict[str, Any], says: str) -> None:
    check_jobspec(form)  # whether it fits does not depend on it
    with pytest.raises(Malformed) as raised:
        from_jobspec(form)
    assert raised.value.detail.startswith(f"the jobspec: {says}"), raised.value.detail


VALID = [
    GOOD,
    changed("version", to=1),
    changed("version", to=999),
    changed(*VERTEX, "exclusive", to=True),
    changed(*VERTEX, "count", to="2,4,8"),
    changed(*VERTEX, "count", to="2-8:2:*"),
    ranged(min=3),
    ranged(min=3, max=30),
    ranged(min=1, max=64, operator="*", operand=2),
    changed(*VERTEX, "id", to="0-3"),
    changed("attributes", to={}),
    changed("attributes", to={"user": {"any": ["thing"]}, "system": {"duration": 3600.0, "unheard-of": 1}}),
    changed(*TASK, "count", to={"total": 1}),
    changed(*TASK, "distribution", to="cyclic"),
    {**changed(*TASK, "command", to="app"), "version": 1},
    constrained({"and": [{"or": [{"hostlist": ["foo"]}, {"ranks": [0]}]}, {"not": [{"properties": ["a", "b"]}]}]}),
    constrained({"ranks": ["0-3", 7]}),
    changed(*VERTEX, "with", to=[{"type": "node", "count": 1}, {"type": "gpu", "count": 0}]),
]


@pytest.mark.parametrize("form", VALID)
def test_a_valid_jobspec_is_taken_everywhere(form: dict[str, Any]) -> None:
    check_jobspec(form)
    plain = from_jobspec(form).plain
    assert plain["command"] == ["app"]
    check_demand(plain["demand"])
    assert demand_of_any_jobspec(plain["demand"]) == demand_of_any_jobspec(form)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (changed(*TASK, "count", to={"per_slot": 2}), "tasks[0].count.per_slot: 2 tasks in each slot"),
        (changed(*TASK, "count", to={"total": 1000}), "tasks[0].count.total: 1000 tasks in "),
        (
            {"resources": {"a": {"type": "node"}}, "tasks": [{"resources": "b"}]},
            "tasks[0].resources: there is no",
        ),
    ],
)
def test_a_demand_that_cannot_have_its_tasks_is_refused(form: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed, match=re.escape(f"the demand: {says}")):
        check_demand(form)


@pytest.mark.parametrize(
    "form",
    [
        {"resources": []},
        {"version": 1, "resources": [{"type": "core"}]},
        {"version": 1, "resources": [{"type": "slot", "count": 2, "with": [{"type": "core", "count": 1}]}]},
        {**changed(*TASK, "command", to=...), "attributes": {}},
        changed(*TASK, "count", to=...),
        {"resources": [{"type": "node", "requires": [{"name": "io", "field": "type", "match": "shm"}]}]},
    ],
)
def test_a_demand_is_a_part_of_a_jobspec(form: dict[str, Any]) -> None:
    check_demand(form)
    demand_of_any_jobspec(form)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (form, says)
        for form, says in BAD
        if "missing" not in says and "has a label" not in says and "holds at" not in says
    ],
)
def test_a_bad_part_is_refused_in_a_demand_too(form: dict[str, Any], says: str) -> None:
    if form.get("resources") == []:
        check_demand(form)
        return
    with pytest.raises(Malformed) as raised:
        check_demand(form)
    assert raised.value.detail.startswith("the demand: ")
    assert says in raised.value.detail


def test_the_walk_is_bounded() -> None:
    deep: dict[str, Any] = {"type": "core", "count": 1}
    for _ in range(60):
        deep = {"type": "rack", "count": 1, "with": [deep]}
    for resources, says in (([deep], "nested deeper than 32"), ([{"type": "core", "count": 1}] * 1001, "over 1000")):
        with pytest.raises(Malformed, match=says):
            check_canonical(changed("resources", to=resources), is_whole=True)


def node(exclusive: bool | None, *holds: dict[str, Any]) -> dict[str, Any]:
    said = {} if exclusive is None else {"exclusive": exclusive}
    return {"type": "node", "count": 2, **said, **({"with": list(holds)} if holds else {})}


def slot(exclusive: bool | None, *holds: dict[str, Any]) -> dict[str, Any]:
    said = {} if exclusive is None else {"exclusive": exclusive}
    return {"type": "slot", "count": 1, "label": "s", **said, "with": list(holds)}


CORE = {"type": "core", "count": 1}
RACK = {"type": "rack", "count": 1}


@pytest.mark.parametrize(
    ("resource", "is_whole"),
    [
        (node(None, slot(None, CORE)), False),
        (node(True, slot(None, CORE)), True),
        (node(False, slot(None, CORE)), False),
        (node(None, slot(True, CORE)), True),
        (slot(None, node(None)), True),
        (slot(None, node(False)), False),
        (slot(False, node(None)), False),
        (slot(None, CORE, {"type": "ssd", "count": 1, "exclusive": True}), False),
        ({**RACK, "with": [node(None, slot(None, CORE))]}, False),
        ({**RACK, "exclusive": True, "with": [node(None, slot(None, CORE))]}, True),
        ({**RACK, "with": [slot(None, node(None, CORE))]}, True),
    ],
)
def test_whole_nodes_are_asked_of_the_batch_system(resource: dict[str, Any], is_whole: bool) -> None:
    plain = from_jobspec(changed("resources", to=[resource])).plain
    assert plain.get("native") == ({"exclusive": True} if is_whole else None)


RAINBOW: dict[str, Any] = {"version": 1, "resources": {"app": {"type": "node", "count": 1}}}


@pytest.mark.parametrize(
    "form",
    [
        {**RAINBOW, "task": {"command": ["lmp", "-in"], "resources": "app"}},
        {**RAINBOW, "task": [{"command": ["lmp", "-in"], "resources": "app"}]},
        {**RAINBOW, "tasks": [{"command": ["lmp", "-in"], "resources": "app"}]},
    ],
)
def test_rainbows_task_is_a_command(form: dict[str, Any]) -> None:
    assert from_jobspec(form).plain["command"] == ["lmp", "-in"]
    check_jobspec(form)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({**RAINBOW, "task": {"resources": "app"}}, "task[0].command: expected a list"),
        ({**RAINBOW, "task": "lmp"}, "task: expected a list"),
        (RAINBOW, "tasks: expected a list"),
        ({**RAINBOW, "version": 2, "task": {"command": ["x"]}}, "version: this is version 2"),
    ],
)
def test_a_dictionary_without_a_command_is_refused_by_its_place(form: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as raised:
        from_jobspec(form)
    assert raised.value.detail.startswith(f"the jobspec: {says}"), raised.value.detail


def test_a_question_about_resources_alone_needs_no_task() -> None:
    """Rainbow's Satisfy is asked so. A job cannot be: it has nothing to run."""
    form = {"version": 1, "resources": [{"type": "core", "count": 1}]}
    check_jobspec(form)
    with pytest.raises(Malformed, match="tasks: missing"):
        from_jobspec(form)
