"""Needs in every form become one tree; what they cannot mean is refused, however deep or large."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Malformed
from switchyard.match.canonical_jobspec import demand_of_jobspec
from switchyard.match.demand import Demand
from switchyard.match.nextgen_jobspec import demand_of_nextgen
from switchyard.match.plain_demand import demand_of_resources
from switchyard.match.requirement import Requirement, equals_text, is_at_least, is_at_most
from switchyard.model.job.job import Resources
from switchyard.model.jobspec.constraint import NodeTraits, read_constraint
from switchyard.model.jobspec.counts import least_count
from tests.builders import GIB


def flux(*resources: Any, **system: Any) -> Demand:
    return demand_of_jobspec({"resources": list(resources), "attributes": {"system": system}})


def rainbow(**groups: Any) -> Demand:
    return demand_of_nextgen({"resources": groups})


def test_cores_are_exact_until_the_match_and_rounded_up_there() -> None:
    assert demand_of_resources(Resources(tasks=3, cores="1500m", memory="0.5")).cores_total == 6
    assert demand_of_resources(Resources(cores="1m")).cores_total == 1
    asked = demand_of_resources(Resources(tasks=3, cores="1500m", gpus=2, memory="1.5GiB"))
    assert (asked.cores_total, asked.gpus_total, asked.memory_bytes_total) == (6, 6, 9 * GIB // 2)


def test_equal_needs_are_one_demand_in_whatever_order_they_are_written() -> None:
    core, gpu = {"type": "core", "count": 2}, {"type": "gpu", "count": 1}
    one = flux({"type": "slot", "count": 1, "with": [core, gpu]})
    other = flux({"with": [gpu, {"type": "core"}, {"type": "core"}], "count": "1", "type": "slot", "label": "x"})
    assert one == other
    assert hash(one) == hash(other)
    assert one.key != flux({"type": "slot", "count": 2, "with": [core, gpu]}).key
    assert flux({"type": "memory", "count": 2, "unit": "GiB"}) == flux({"type": "memory", "count": 2048, "unit": "MiB"})


def test_totals_multiply_down_the_tree_and_groups_on_their_own_do_not_add_up() -> None:
    node = {"type": "node", "count": 3, "with": [{"type": "slot", "count": 2, "with": [{"type": "core", "count": 4}]}]}
    assert flux(node, {"type": "core", "count": 1}).cores_total == 25
    assert rainbow(a=node, b={"type": "node", "replicas": 1, "with": [{"type": "core", "count": 30}]}).cores_total == 30


def test_a_task_and_a_schedule_leave_the_other_groups_out() -> None:
    big = {"type": "node", "count": 99}
    assert rainbow(a={"type": "node", "count": 1, "schedule": True}, b=big).totals == {("node", ""): 1}


@pytest.mark.parametrize(
    ("count", "least"),
    [
        (4, 4),
        (4.0, 4),
        ("4", 4),
        ("2,4,8", 2),
        ("3-5", 3),
        ("[3-5]", 3),
        ("4+", 4),
        ("2-64:2:*", 2),
        ("2+:2:^", 2),
        ("1-9:2", 1),
        ({"min": 3}, 3),
        ({"min": 2, "max": 8, "operator": "*", "operand": 2}, 2),
    ],
)
def test_a_range_needs_its_least(count: Any, least: int) -> None:
    assert least_count(count, place="count") == least


@pytest.mark.parametrize(
    "count",
    [
        0, -1, 10**9, 1.5, True, None, [], "", "0", "x", "5-3", "2-8:1:*", "1+:2:^", "2:3:/", "1-2-3", "9" * 400,
        {}, {"min": 0}, {"min": 2, "max": 1}, {"min": 2, "operator": "*"}, {"min": 2, "by": 1},
        {"min": 2, "operator": "%", "operand": 2}, {"min": "2"}, {"min": 10**9},
    ],
)  # fmt: skip
def test_what_is_no_count_is_refused(count: Any) -> None:
    with pytest.raises(Malformed, match="count"):
        least_count(count, place="count")


def deep(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "core"}
    for _ in range(levels):
        made = {"type": "slot", "with": [made]}
    return made


BAD = [
    ({}, "resources: expected"),
    ({"resources": 7}, "resources: expected"),
    ({"resources": ["core"]}, "resources[0]: expected a resource"),
    ({"resources": [{"count": 1}]}, "resources[0].type"),
    ({"resources": [{"type": 7}]}, "resources[0].type"),
    ({"resources": [{"type": "node", "with": {"type": "core"}}]}, "resources[0].with: expected a list"),
    ({"resources": [{"type": "node", "with": [{"type": "core", "count": 10**9}]}]}, "resources[0].with[0].count"),
    ({"resources": [{"type": "core", "count": "a lot"}]}, "resources[0].count"),
    ({"resources": [{"type": "core", "unit": 4}]}, "resources[0].unit"),
    ({"resources": [deep(1000)]}, "nested deeper than 32"),
    ({"resources": [{"type": "core", "count": 1}] * 2000}, "over 1000 resources"),
    ({"resources": [{"type": "node", "requires": {"name": "io"}}]}, "resources[0].requires: expected a list"),
    ({"resources": [{"type": "node", "requires": ["io"]}]}, "resources[0].requires[0]"),
    (
        {"resources": [{"type": "node", "requires": [{"name": "io", "field": "type", "match": ["a", "b"]}]}]},
        "resources[0].requires[0].match: expected a text, a number",
    ),
    ({"resources": [], "attributes": {"system": {"constraints": {"nor": []}}}}, "constraints.nor: not an operator"),
    ({"resources": [], "attributes": {"system": {"constraints": {"properties": "x"}}}}, "expected a list"),
]


@pytest.mark.parametrize(("form", "says"), BAD)
def test_a_bad_jobspec_is_refused_with_its_place(form: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as caught:
        demand_of_jobspec(form, where="job.yaml")
    assert "job.yaml" in caught.value.detail
    assert says in caught.value.detail


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"a": 7}, "resources.a: expected a resource"),
        ({"a": {"type": "node", "replicas": -1}}, "resources.a.replicas"),
        ({"a": {"type": "node", "replicas": 10**9}}, "resources.a.replicas"),
        ({"a": {"type": "node", "replicas": "many"}}, "resources.a.replicas"),
        ({"a": deep(1000)}, "nested deeper than 32"),
        ({str(number): {"type": "node"} for number in range(101)}, "over 100 groups"),
    ],
)
def test_a_bad_dictionary_is_refused_with_its_place(groups: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed) as caught:
        rainbow(**groups)
    assert says in caught.value.detail


def test_requirements_take_numbers_and_ask_nothing_where_a_part_is_missing() -> None:
    entries = [{"name": "s", "field": "v", "min": 0.5, "max": 2}, {"name": "s", "field": "b", "match": True}]
    loose = [{"field": "v", "match": "x"}, {"name": "s", "match": "x"}, {"name": "s", "field": "v"}]
    need = rainbow(a={"type": "node", "count": 1, "requires": [*entries, *loose]}).needs[0]
    assert set(need.requires) == {Requirement("s", "v", min="0.5", max="2"), Requirement("s", "b", match="true")}


@pytest.mark.parametrize(
    ("value", "text", "is_so"),
    [
        (True, "true", True), (True, "1", False), (False, "False", True), (1, "1", True), (1, "1.0", True),
        (1.5, "1.5", True), (1, "true", False), ("1", "1", True), ("1.0", "1", False), ("a||b", "a||b", True),
        (12, "1_2", False), (12, "nan", False), ("true", "true", True),
    ],
)  # fmt: skip
def test_equality_knows_types(value: Any, text: str, is_so: bool) -> None:
    assert equals_text(value, text) is is_so


VERSIONS = [
    # version, min, max, whether it lies within
    ("0.5.2", "0.5.2", None, True),
    ("0.5.2", None, "0.5.2", True),
    ("0.5.2", "0.5.10", None, False),
    ("0.5.10", "0.5.2", None, True),
    ("0.5.9", None, "0.5", True),
    ("0.6.0", None, "0.5", False),
    ("1.9.9", None, "1", True),
    ("0.5.9", "0.5", None, True),
    ("v1.2", "1.2.0", "v1.2.0", True),
    ("1.0.0-rc1", "0.9.0", None, False),
    ("1.0.0-rc1", "1.0.0-alpha", None, True),
    ("1.0.0-rc1", "0.9.0-0", "1.0.0-rc2", True),
    ("1.0.0-rc1", None, "2", False),
    ("1.0.0-2", "1.0.0-10", None, False),
    ("1.0.0+build5", "1.0.0", "1.0.0", True),
    ("2023.1.0.1", "2023.1", None, True),
    ("2023.1.0.1", "2023.1.0.2", None, False),
    ("2023.1.0.1", None, "2023.1", True),
    ("2023.1.0.1", None, "2023.1.0.0", False),
    ("470.57.02.1", "535", None, False),
    ("gcc12", "0.1", None, False),
    ("gcc12", "gcc12", "gcc12", True),
    ("", "0", None, False),
    ("1.2", "x" * 300, None, False),
    ("9" * 400, "1", None, False),
]


@pytest.mark.parametrize(("version", "least", "most", "is_so"), VERSIONS)
def test_versions_are_compared_as_people_mean_them(
    version: str, least: str | None, most: str | None, is_so: bool
) -> None:
    is_within = (least is None or is_at_least(version, least)) and (most is None or is_at_most(version, most))
    assert is_within is is_so


FAST = NodeTraits({"fast": True, "kind": "thin", "old": False}, "n7", 7)


@pytest.mark.parametrize(
    ("form", "is_allowed"),
    [
        ({"properties": ["fast"]}, True),
        ({"properties": ["fast", "slow"]}, False),
        ({"properties": ["^fast"]}, False),
        ({"properties": ["^slow", "fast"]}, True),
        ({"properties": ["kind=thin"]}, True),
        ({"properties": ["kind=fat"]}, False),
        ({"properties": ["old"]}, False),
        ({"properties": []}, True),
        ({"hostlist": ["n[6-8]", "x"]}, True),
        ({"hostlist": ["n[0-3]"]}, False),
        ({"ranks": ["0-3", "[7]"]}, True),
        ({"ranks": ["8"]}, False),
        ({"not": [{"ranks": ["8"]}]}, True),
        ({"not": []}, False),
        ({"and": [{"ranks": ["7"]}, {"properties": ["slow"]}]}, False),
        ({"or": [{"ranks": ["8"]}, {"properties": ["fast"]}]}, True),
        ({"ranks": ["7"], "properties": ["fast"]}, True),
        ({"or": [{}, {"ranks": ["8"]}]}, True),
    ],
)
def test_a_constraint_allows_what_it_says(form: Any, is_allowed: bool) -> None:
    found = read_constraint(form, where="constraints")
    assert found is not None
    assert found.allows(FAST) is is_allowed


@pytest.mark.parametrize("form", [None, {}, {"and": []}, {"or": []}])
def test_an_empty_constraint_is_none(form: Any) -> None:
    assert read_constraint(form, where="constraints") is None


def nots(levels: int) -> Any:
    made: Any = {"ranks": ["0"]}
    for _ in range(levels):
        made = {"not": [made]}
    return made


@pytest.mark.parametrize(
    "form",
    [
        7, [], "x", {"properties": "x"}, {"properties": [7]}, {"properties": ["a|b"]}, {"properties": ["^"]},
        {"hostlist": ["n["]}, {"ranks": ["x"]}, {"not": [{}, {}]}, {"xor": []}, {"and": [7]}, nots(1000),
        {"hostlist": ["n[0-9999999]"]}, {"or": [{"ranks": ["0"]}] * 20_000},
    ],
)  # fmt: skip
def test_a_bad_constraint_is_refused(form: Any) -> None:
    with pytest.raises(Malformed, match="constraints"):
        read_constraint(form, where="constraints")
