"""Our compiler against Flyte's own, on every workflow of the corpus, as unmodified flytekit registers them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from flyteidl.admin import launch_plan_pb2
from google.protobuf import json_format

from switchyard.features.flyte.workflow.compile.compiler import WorkflowSource, compile_workflow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.compile.launch_plan_checks import expected_inputs, launch_plan_mistakes
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.signature import Signature, of_interface, of_launch_plan
from switchyard.features.flyte.workflow.compile.task_checks import task_mistakes
from tests.workflow.corpus import compiled_by_flyte, sent_by_flytekit, with_names_only

pytestmark = pytest.mark.xdist_group("corpus")


@cache
def compiled_by_us() -> dict[str, tuple[Any, Mistakes]]:
    """Every workflow by its name. The references of 30_reference lead to a version that nobody registered here."""
    known: dict[EntityId, Signature] = {}
    interfaces: dict[str, Any] = {}
    results = {}
    for sent in sent_by_flytekit():
        message = sent.message
        if sent.kind == "TaskSpec":
            known[read_id(sent.id, EntityKind.TASK)] = of_interface(message.template.interface)
        elif sent.kind == "WorkflowSpec":
            interfaces[sent.id.name] = message.template.interface
            source = WorkflowSource(message.template, tuple(message.sub_workflows), known)
            results[sent.id.name] = compile_workflow(source)
        else:
            inner = interfaces[message.spec.workflow_id.name]
            closure = launch_plan_pb2.LaunchPlanClosure(
                expected_inputs=expected_inputs(message.spec, inner.inputs.variables), expected_outputs=inner.outputs
            )
            known[read_id(sent.id, EntityKind.LAUNCH_PLAN)] = of_launch_plan(closure)
    return results


def test_every_workflow_of_the_corpus_is_compared() -> None:
    assert len(compiled_by_flyte()) == 45
    assert set(compiled_by_us()) - set(compiled_by_flyte()) == {"30_reference.plus", "30_reference.wf"}


@pytest.mark.parametrize("name", sorted(compiled_by_flyte()))
def test_a_workflow_compiles_to_what_flyte_makes_of_it(name: str) -> None:
    closure, mistakes = compiled_by_us()[name]
    assert not mistakes, mistakes.as_text()
    plain = json_format.MessageToDict(closure, preserving_proto_field_name=True)
    tasks = plain.pop("tasks", [])
    assert with_names_only(plain) == compiled_by_flyte()[name]
    assert all(set(task["template"]) == {"id"} for task in tasks)


def test_the_source_of_a_compilation_is_not_changed() -> None:
    sent = next(
        sent for sent in sent_by_flytekit() if sent.id.name == "06_conditional.wf" and sent.kind == "WorkflowSpec"
    )
    assert [node.id for node in sent.message.template.nodes] == ["n0", "n1", "n2", "n3"]
    assert sent.message.template.nodes[1].branch_node.if_else.case.then_node.id == "n0"


def test_references_to_what_is_not_there_are_named() -> None:
    closure, mistakes = compiled_by_us()["30_reference.wf"]
    assert closure is None
    assert [(mistake.code, mistake.where) for mistake in mistakes.first] == [
        ("TaskReferenceNotFound", "n0"),
        ("WorkflowReferenceNotFound", "n1"),
    ]


def test_all_tasks_and_plans_of_the_corpus_pass_their_checks() -> None:
    interfaces = {
        sent.id.name: sent.message.template.interface for sent in sent_by_flytekit() if sent.kind == "WorkflowSpec"
    }
    for sent in sent_by_flytekit():
        if sent.kind == "TaskSpec":
            assert list(task_mistakes(sent.message.template, {})) == [], sent.id.name
        elif sent.kind == "LaunchPlan":
            inputs = interfaces[sent.message.spec.workflow_id.name].inputs.variables
            assert list(launch_plan_mistakes(sent.message.spec, inputs)) == [], sent.id.name
