"""Demands of jobspecs: what their largest task asks for, and which vertices an image's needs are asked of."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Malformed, PolicyRefused
from switchyard.match.demand import walk_needs
from switchyard.model.job.image_compatibility import Compatibility
from switchyard.model.job.job import JobSpec
from switchyard.model.rules.scope import Scope
from switchyard.service.lifecycle.demands import demand_of_any_jobspec, demand_of_spec, largest_task
from switchyard.service.rules import attributes
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig


def slot(count: int, *holds: dict[str, Any]) -> dict[str, Any]:
    return {"type": "slot", "count": count, "label": "s", "with": list(holds)}


def of(kind: str, count: int, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "count": count, **fields}


NODE = of("node", 2, **{"with": [slot(3, of("core", 4), of("memory", 2, unit="GiB"))]})
FORMS: list[tuple[str, Any, dict[str, int]]] = [
    ("one slot", [slot(5, of("core", 4), of("gpu", 1))], {"cpu": 4, "gpu": 1}),
    ("slots in nodes", [NODE], {"cpu": 4, "memory": 2 * 2**30}),
    ("the largest of several", [slot(9, of("core", 1)), slot(1, of("core", 8))], {"cpu": 8}),
    ("nodes in a slot", [slot(1, of("node", 2, **{"with": [of("core", 3)]}))], {"cpu": 6}),
    ("no slot: a node each", [of("node", 2, **{"with": [of("core", 3), of("core", 2)]})], {"cpu": 5}),
    ("beside a slot", [of("node", 1, **{"with": [slot(1, of("core", 1)), of("core", 7)]})], {"cpu": 7}),
    ("storage", [slot(1, of("storage", 3, unit="GB"))], {"ephemeral_storage": 3 * 10**9}),
    ("groups", {"a": of("node", 2, **{"with": [of("core", 6)]}), "b": of("core", 1)}, {"cpu": 6}),
    ("nothing", [], {}),
]


@pytest.mark.parametrize(("name", "resources", "expected"), FORMS, ids=[name for name, _, _ in FORMS])
def test_the_largest_task(name: str, resources: Any, expected: dict[str, int]) -> None:
    assert largest_task(demand_of_any_jobspec({"version": 1, "resources": resources})) == expected


def required(resources: Any) -> list[str]:
    """The types of needs that the image's compatibility is asked of."""
    spec = JobSpec(
        ["x"], demand={"version": 1, "resources": resources}, compatibility=[Compatibility("kernel", min="5")]
    )
    return sorted(need.type for need, _ in walk_needs(demand_of_spec(spec).needs) if need.requires)


@pytest.mark.parametrize(
    ("resources", "types"),
    [
        ([slot(1, of("core", 1))], ["slot"]),
        ([of("node", 1, **{"with": [slot(1, of("core", 1))]})], ["node"]),
        ([slot(1, of("node", 2))], ["node"]),
        ([slot(1, of("node", 1), of("ssd", 8))], ["node"]),
        ([of("rack", 1, **{"with": [slot(1, of("rack", 1, **{"with": [of("node", 1)]}))]})], ["node"]),
        ([slot(1, of("node", 1)), slot(1, of("core", 1))], ["node", "slot"]),
    ],
)
def test_an_images_needs_are_asked_of_the_nodes_of_a_slot(resources: Any, types: list[str]) -> None:
    assert required(resources) == types


def test_what_a_demand_has_is_checked_at_submit(rig: Rig) -> None:
    rig.cluster("alpha")
    for demand, says in (
        ({"version": 7, "resources": []}, "the demand: version: this is version 7"),
        (
            {"resources": [{**slot(1, of("core", 1)), "exclusive": "no"}]},
            "resources[0].exclusive: expected true or false",
        ),
        ({"resources": [slot(1, of("core", 1))], "tasks": [{"slot": 7}]}, "tasks[0].slot: expected a text"),
    ):
        with pytest.raises(Malformed) as caught:
            rig.submit(a_request(demand=demand))
        assert says in caught.value.detail


def test_a_jobspec_is_held_to_the_limits_whatever_the_fields_beside_it_say(rig: Rig) -> None:
    rig.cluster("alpha")
    limits = {"limits": {"cpu": "2", "memory": "1Gi"}}
    attributes.put(rig.context, ADMIN, "task-resource-attribute", Scope("development", "default"), limits)

    def submit(*holds: dict[str, Any]) -> Any:
        demand = {"version": 1, "resources": [slot(1, *holds)], "tasks": [{"slot": "s", "count": {"per_slot": 1}}]}
        return rig.submit(a_request(cores=1, demand=demand))

    with pytest.raises(PolicyRefused) as caught:
        submit(of("core", 3), of("memory", 2, unit="GiB"))
    assert "cpu: asks for 3, and the limit is 2 (project+domain level" in caught.value.detail
    assert "memory: asks for 2147483648, and the limit is 1Gi" in caught.value.detail
    submit(of("core", 2))
