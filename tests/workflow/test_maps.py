"""Maps: how many elements they have, how many must succeed, and what the engine does with them."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import literals_pb2, workflow_pb2

from switchyard.features.flyte.workflow.engine.execution_checks import unserved_parts
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, AttemptFailure, ExecutionPhase
from switchyard.features.flyte.workflow.engine.map_elements import (
    ELEMENTS_MAX,
    PART_SIZE,
    ElementState,
    MapRefused,
    PartResults,
    element_inputs,
    elements_to_start,
    gather_outputs,
    map_shape,
    next_state,
)
from tests.workflow.builders import INT, a_template, bindings, compiled, list_of, scalar, task_node
from tests.workflow.engine_runs import Run, graph_of, literals

AGAIN = AttemptFailure("USER:Recoverable", "once more", is_recoverable=True)
SYSTEM = AttemptFailure("Interrupted", "killed", is_recoverable=True, is_system=True)


def an_array(**fields: Any) -> Any:
    return workflow_pb2.ArrayNode(**fields)


def lists(**values: int | list[int]) -> Any:
    made = literals_pb2.LiteralMap()
    for name, value in values.items():
        if isinstance(value, int):
            made.literals[name].scalar.CopyFrom(scalar(value))
            continue
        made.literals[name].collection.SetInParent()
        for one in value:
            made.literals[name].collection.literals.add().scalar.CopyFrom(scalar(one))
    return made


def map_node(node_id: str, task: str = "total", *, array: Any = None, **inputs: Any) -> Any:
    node = workflow_pb2.Node(id=node_id, inputs=bindings(inputs), array_node=array or an_array())
    node.array_node.node.CopyFrom(task_node("inner", task))
    return node


@pytest.mark.parametrize(
    ("fields", "inputs", "size", "minimum"),
    [
        ({}, {"a": [1, 2, 3]}, 3, 3),
        ({}, {"a": [1, 2], "b": [3, 4]}, 2, 2),
        ({"bound_inputs": ["b"]}, {"a": [1, 2], "b": [3, 4, 5]}, 2, 2),
        ({"bound_inputs": ["b"]}, {"b": [3, 4, 5]}, 1, 1),
        ({}, {}, 1, 1),
        ({}, {"a": []}, 0, 0),
        ({"min_successes": 1}, {"a": [1, 2, 3]}, 3, 1),
        ({"min_success_ratio": 0.6}, {"a": [0] * 5}, 5, 3),
        ({"min_success_ratio": 0.6}, {"a": [0] * 10}, 10, 6),
        ({"min_success_ratio": 0.61}, {"a": [0] * 5}, 5, 4),
        ({"min_success_ratio": 1 / 3}, {"a": [0] * 3}, 3, 1),
        ({"min_success_ratio": 0.0}, {"a": [0] * 5}, 5, 0),
        ({"min_success_ratio": 1.0}, {"a": [0] * 5}, 5, 5),
    ],
)
def test_the_size_of_a_map_and_its_least_successes(
    fields: dict[str, Any], inputs: dict[str, Any], size: int, minimum: int
) -> None:
    shape = map_shape(an_array(**fields), lists(**inputs))
    assert (shape.size, shape.minimum) == (size, minimum)


@pytest.mark.parametrize(
    ("fields", "inputs", "code", "words"),
    [
        ({}, {"a": [1], "b": [1, 2]}, "InvalidArrayLength", "a has 1, b has 2"),
        ({}, {"a": 1}, "InvalidArrayLength", "no input of the map is a list"),
        ({}, {"a": [0] * (ELEMENTS_MAX + 1)}, "InvalidArrayLength", "the most is 100000"),
        ({"min_successes": 4}, {"a": [1, 2, 3]}, "InvalidArrayNode", "min_successes is 4"),
        ({"min_success_ratio": float("nan")}, {"a": [1]}, "InvalidArrayNode", "from 0 to 1"),
        ({"min_success_ratio": 1.5}, {"a": [1]}, "InvalidArrayNode", "from 0 to 1"),
        ({"min_success_ratio": -0.1}, {"a": [1]}, "InvalidArrayNode", "from 0 to 1"),
        ({"min_success_ratio": float("inf")}, {"a": [1]}, "InvalidArrayNode", "from 0 to 1"),
    ],
)
def test_maps_that_cannot_run(fields: dict[str, Any], inputs: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(MapRefused, match=words) as refusal:
        map_shape(an_array(**fields), lists(**inputs))
    assert refusal.value.code == code


@pytest.mark.parametrize("ratio", [float("nan"), 1.01, -1.0, float("-inf")])
def test_an_execution_with_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    template = a_template(map_node("n0", array=an_array(min_success_ratio=ratio), many=[1]))
    closure, mistakes = compiled(template)
    assert closure is not None, mistakes.as_text()
    closure.tasks[0].template.container.image = "i"
    assert ["min_success_ratio" in part for part in unserved_parts(closure)] == [True]


def test_each_element_has_its_own_values_and_the_bound_ones_whole() -> None:
    own = element_inputs(["b"], lists(a=[7, 8], b=[1, 2, 3], c=5), 1)
    assert own.literals["a"].scalar.primitive.integer == 8
    assert len(own.literals["b"].collection.literals) == 3
    assert own.literals["c"].scalar.primitive.integer == 5


def test_outputs_are_lists_in_order_with_none_for_failed_elements() -> None:
    size = PART_SIZE + 2
    bodies = {index: literals(o0=index).SerializeToString() for index in range(size) if index != 1}
    parts = {
        0: PartResults({index: body for index, body in bodies.items() if index < PART_SIZE}),
        1: PartResults({index: body for index, body in bodies.items() if index >= PART_SIZE}),
    }
    values = gather_outputs(["o0"], size, parts).literals["o0"].collection.literals
    assert len(values) == size
    assert [values[index].scalar.primitive.integer for index in (0, 2, size - 1)] == [0, 2, size - 1]
    assert values[1].scalar.WhichOneof("value") == "none_type"
    assert gather_outputs(["o0"], 0, {}).literals["o0"].WhichOneof("value") == "collection"


@pytest.mark.parametrize(
    ("failure", "user", "system", "state"),
    [
        (AttemptFailure("USER:ValueError", "bad"), 1, 0, ElementState.FAILED),
        (AGAIN, 1, 0, ElementState.AGAIN),
        (AGAIN, 2, 3, ElementState.AGAIN),
        (AGAIN, 3, 0, ElementState.FAILED),
        (SYSTEM, 0, 3, ElementState.AGAIN),
        (SYSTEM, 2, 4, ElementState.FAILED),
    ],
)
def test_an_element_is_tried_again_within_its_retries(
    failure: AttemptFailure, user: int, system: int, state: ElementState
) -> None:
    assert next_state(failure, user, system, retries=2) is state


def a_run(many: Any, **fields: Any) -> Run:
    template = a_template(
        map_node("n0", array=an_array(**fields), many="@.many"),
        task_node("n1", "one", upstream=("n0",)),
        gives={"o": (INT, "@n0.o0")},
        many=list_of(INT),
    )
    return Run(graph_of(template), lists(many=many))


def test_a_map_starts_as_one_attempt_and_hands_on_its_outputs() -> None:
    run = a_run([1, 2, 3])
    assert run.step() == ["n0#0"]
    assert run.nodes["n0"].is_array
    assert run.step(AttemptEnd("n0", 0, literals(o0=9))) == ["n1#0"]
    run.end("n1")
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_a_map_over_nothing_ends_at_once() -> None:
    run = a_run([])
    assert run.step() == ["n1#0"]
    assert run.nodes["n0"].outputs.literals["o0"].WhichOneof("value") == "collection"


@pytest.mark.parametrize(
    ("end", "phase", "code"),
    [
        (AttemptEnd("n0", 0, failure=AGAIN), ExecutionPhase.FAILED, "USER:Recoverable"),
        (AttemptEnd("n0", 0), ExecutionPhase.FAILED, "Cancelled"),
    ],
)
def test_a_map_that_fails_is_not_tried_again_as_a_whole(end: AttemptEnd, phase: ExecutionPhase, code: str) -> None:
    run = a_run([1])
    run.step()
    assert run.step(end) == []
    assert (run.phase, run.error.code) == (phase, code)


def test_a_map_of_lists_that_differ_fails() -> None:
    template = a_template(map_node("n0", "add", a="@.x", b="@.y"), x=INT, y=INT)
    run = Run(graph_of(template), lists(x=[1], y=[1, 2]))
    assert run.step() == []
    assert (run.phase, run.error.code) == (ExecutionPhase.FAILED, "InvalidArrayLength")


def test_a_map_that_is_stopped_with_its_execution_is_aborted() -> None:
    run = a_run([1, 2])
    run.step()
    run.phase = ExecutionPhase.ABORTING
    run.step()
    assert run.step(AttemptEnd("n0", 0)) == []
    assert (run.phase, run.phases()["n0"]) == (ExecutionPhase.ABORTED, "ABORTED")


@pytest.mark.parametrize(
    ("wanted", "room", "limit", "count"),
    [
        (5000, None, 0, 5000),  # no limit
        (5000, 10_000, 10_000, 5000),
        (5000, 1000, 1000, 1000),  # a map larger than the limit: the first range
        (5000, 0, 1000, 0),  # other arrays have all
        (5000, 99, 1000, 0),  # too little to begin with
        (5000, 100, 1000, 100),
        (50, 49, 1000, 0),  # it waits for room for all
        (50, 50, 1000, 50),
        (5000, 10, 10, 10),  # the limit itself is small
        (5000, 9, 10, 0),
    ],
)
def test_a_map_begins_with_as_many_elements_as_the_owner_may_have(
    wanted: int, room: int | None, limit: int, count: int
) -> None:
    assert elements_to_start(wanted, room=room, limit=limit) == count
