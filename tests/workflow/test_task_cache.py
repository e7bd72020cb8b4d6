"""Cached tasks: their keys, and what the engine does with the answers of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from flyteidl.core import tasks_pb2, workflow_pb2

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.tasks.task_cache import (
    HIT,
    MISS,
    CacheAnswer,
    CacheRule,
    cache_key,
    cache_rule,
    is_inside_holder,
)
from tests.workflow.builders import INT, TEXT, a_template, interface, task_node
from tests.workflow.engine_runs import AGAIN, Run, diamond, graph_of, literals, number

TASK = EntityId(EntityKind.TASK, "p", "d", "t", "v1")
RULE = CacheRule("1", is_serial=False)
SCOPE = ("p", "d", "")


def a_task(**metadata: Any) -> Any:
    template = tasks_pb2.TaskTemplate(interface=interface({"a": INT, "b": INT}, {"o0": INT}))
    template.metadata.MergeFrom(tasks_pb2.TaskMetadata(**metadata))
    return template


def key(
    task: EntityId = TASK, template: Any = None, rule: CacheRule = RULE, scope: Sequence[str] = SCOPE, **inputs: Any
) -> bytes:
    return cache_key(task, template or a_task(), rule, literals(**inputs), scope=scope)


def test_a_key_is_of_the_task_its_cache_version_its_interface_and_its_inputs() -> None:
    same = key(a=1, b=2)
    assert key(b=2, a=1) == same
    assert key(EntityId(EntityKind.TASK, "p", "d", "t", "v2"), a=1, b=2) == same, "another version of the task"
    described = a_task()
    described.interface.inputs.variables["a"].description = "a number"
    assert key(template=described, a=1, b=2) == same
    others = [
        key(a=1, b=3),
        key(EntityId(EntityKind.TASK, "q", "d", "t", "v1"), a=1, b=2),
        key(EntityId(EntityKind.TASK, "p", "e", "t", "v1"), a=1, b=2),
        key(EntityId(EntityKind.TASK, "p", "d", "u", "v1"), a=1, b=2),
        key(rule=CacheRule("2", is_serial=False), a=1, b=2),
        key(template=tasks_pb2.TaskTemplate(interface=interface({"a": INT, "b": TEXT}, {"o0": INT})), a=1, b=2),
    ]
    assert len({same, *others}) == 7


def test_outputs_made_in_another_project_or_in_the_folder_of_another_cluster_are_not_used() -> None:
    keys = {key(scope=scope, a=1, b=2) for scope in (SCOPE, ("q", "d", ""), ("p", "d", "c1:/data"))}
    assert len(keys) == 3


def test_ignored_inputs_do_not_count_and_hashes_count_for_values() -> None:
    loose = a_task(cache_ignore_input_vars=["b"])
    assert key(template=loose, a=1, b=2) == key(template=loose, a=1, b=3)
    first, second, other = literals(a=1), literals(a=2), literals(a=2)
    for values, text in ((first, "same"), (second, "same"), (other, "other")):
        values.literals["a"].hash = text
    keys = [cache_key(TASK, a_task(), RULE, values, scope=SCOPE) for values in (first, second, other)]
    assert (keys[0] == keys[1], keys[0] == keys[2]) == (True, False)


@pytest.mark.parametrize(
    ("task", "node", "rule"),
    [
        ({}, {}, None),
        ({"discoverable": True, "discovery_version": "1"}, {}, CacheRule("1", is_serial=False)),
        ({"discoverable": True, "cache_serializable": True}, {}, CacheRule("", is_serial=True)),
        ({"discoverable": True}, {"cacheable": False}, None),
        ({}, {"cacheable": True, "cache_version": "7"}, CacheRule("7", is_serial=False)),
        (
            {"discoverable": True, "discovery_version": "1", "cache_serializable": True},
            {"cache_version": "2", "cache_serializable": False},
            CacheRule("2", is_serial=False),
        ),
    ],
)
def test_a_node_says_how_it_is_cached_and_the_task_says_the_rest(
    task: dict[str, Any], node: dict[str, Any], rule: CacheRule | None
) -> None:
    assert cache_rule(a_task(**task), workflow_pb2.Node(metadata=workflow_pb2.NodeMetadata(**node))) == rule


def test_a_hit_ends_its_node_at_once() -> None:
    run = Run(diamond(), literals(x=5))
    hit = CacheAnswer(HIT, b"k", literals(o0=3), "other/n0/0")
    assert run.step(answers={("n0", 0): hit}) == ["n1#0", "n2#0"]
    assert (run.nodes["n0"].cache_status, run.nodes["n0"].cache_source) == (HIT, "other/n0/0")
    assert number(run.nodes["n1"].inputs, "a") == 3


def test_a_node_whose_key_is_held_waits_and_others_begin() -> None:
    run = Run(graph_of(a_template(task_node("n0", "one"), task_node("n1", "one"))))
    held = {("n0", 0): CacheAnswer(MISS, b"k", must_wait=True)}
    assert run.step(answers=held) == ["n1#0"]
    run.end("n1")
    assert (run.phase, set(run.nodes)) == (ExecutionPhase.RUNNING, {"n1"})
    run.is_due = True
    assert run.step(answers={("n0", 0): CacheAnswer(HIT, b"k", literals(o0=1))}) == []
    assert run.phase is ExecutionPhase.SUCCEEDED


def test_a_further_attempt_keeps_the_key() -> None:
    run = Run(graph_of(a_template(task_node("n0", "one")), retries=1))
    assert run.step(answers={("n0", 0): CacheAnswer(MISS, b"k", is_serial=True)}) == ["n0#0"]
    assert run.fail("n0", AGAIN) == ["n0#1"]
    assert run.nodes["n0"].cache_key == b"k"
    run.end("n0")
    assert run.phase is ExecutionPhase.SUCCEEDED


@pytest.mark.parametrize(
    ("around", "launchers", "holders", "is_inside"),
    [
        ([], [], set(), False),
        (["d"], [], set(), False),
        (["d"], [], {("e", "d")}, True),
        (["d-0-sub", "d"], [], {("e", "d")}, True),  # deep inside
        (["d"], [], {("e", "other")}, False),
        (["d"], [], {("f", "d")}, False),  # of another execution
        ([], [("outer", "d-0-lp")], {("outer", "d")}, True),  # the launch plan node is inside of the holder
        ([], [("outer", "lp")], {("outer", "d")}, False),
        ([], [("outer", "d2")], {("outer", "d")}, False),
        ([], [("middle", "lp"), ("outer", "d-0-lp")], {("outer", "d")}, True),
    ],
)
def test_a_node_inside_of_a_holder_is_known(
    around: list[str], launchers: list[tuple[str, str]], holders: set[tuple[str, str]], is_inside: bool
) -> None:
    assert is_inside_holder(around, launchers, holders, execution="e") is is_inside
