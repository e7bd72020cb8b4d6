"""Checks before an execution is created: its inputs, and whether all of its nodes can run here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flyteidl.core import interface_pb2, literals_pb2

from switchyard.features.flyte.workflow.compile.references import with_inner_nodes
from switchyard.features.flyte.workflow.engine.map_elements import criteria_mistake
from switchyard.features.flyte.workflow.engine.node_job import accelerator_type
from switchyard.features.flyte.workflow.tasks.pod_task import is_pod_task, pod_task_mistakes
from switchyard.features.flyte.workflow.tasks.raw_container import is_raw_container, raw_container_mistakes
from switchyard.features.flyte.workflow.values.bindings import show_type
from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.literals import type_of_literal
from switchyard.model.cluster.native_grammars import GPU_TYPE

EXECUTION_NAME = re.compile(r"[a-z][a-z\-0-9]{0,62}\Z")
SERVED_NODES = ("task_node", "workflow_node", "branch_node", "gate_node", "array_node")
NODE_WORDS = {
    None: "a node without a target",
}
_FILE_TYPES = ("blob", "schema", "structured_dataset_type")


def name_mistake(name: str) -> str:
    """Why no execution can have this name. Empty: one can."""
    if EXECUTION_NAME.match(name.lower()):
        return ""
    return f"invalid name [{name[:80]}]: a letter, then letters, digits and -, at most 63 characters"


def unserved_parts(closure: Any) -> Iterator[str]:
    """What of a compiled workflow cannot run here yet, each with the name of the node or task."""
    for compiled in (closure.primary, *closure.sub_workflows):
        template = compiled.template
        for node in template.nodes:
            yield from _unserved_node(node)
        if template.HasField("failure_node"):
            yield from _unserved_node(template.failure_node)
    for task in closure.tasks:
        yield from _unserved_task(task.template)


def _unserved_node(node: Any) -> Iterator[str]:
    for one in with_inner_nodes(node):
        target = one.WhichOneof("target")
        if target is None and one.id in ("start-node", "end-node"):
            continue
        if target not in SERVED_NODES:
            yield f"node {one.id} is {NODE_WORDS[target]}"
            return  # nodes inside it are not the reason
        if target == "array_node":
            yield from _unserved_map(one)
        if target == "task_node" and one.task_node.overrides.HasField("pod_template"):
            yield f"node {one.id} overrides the pod template"
        if target == "task_node":
            yield from (f"node {one.id} {words}" for words in _extended(one.task_node.overrides.extended_resources))


def _unserved_map(node: Any) -> Iterator[str]:
    array = node.array_node
    if mistake := criteria_mistake(array):
        yield f"node {node.id} is a map, and its {mistake}"
    if array.node.WhichOneof("target") != "task_node" or array.is_original_sub_node_interface.value:
        yield f"node {node.id} is a map over a launch plan or a reference task"


def _unserved_task(template: Any) -> Iterator[str]:
    name = template.id.name
    if is_pod_task(template):
        yield from (f"task {name} is a pod, and {mistake}" for mistake in pod_task_mistakes(template))
    elif template.WhichOneof("target") != "container":
        yield f"task {name} is of type {template.type or '?'}, which has no container"
        return
    if template.type == "container_array":
        yield f"task {name} is a map task of an old flytekit (container_array)"
    if is_raw_container(template):
        yield from (f"task {name} is a raw container, and {mistake}" for mistake in raw_container_mistakes(template))
    if template.metadata.is_eager:
        yield f"task {name} is eager"
    if template.metadata.pod_template_name:
        shown = template.metadata.pod_template_name[:80]
        yield f"task {name} names a PodTemplate of its cluster, {shown}; give it one of its own (pod_template=…)"
    yield from (f"task {name} {words}" for words in _extended(template.extended_resources))


def _extended(resources: Any) -> Iterator[str]:
    """What a task or a node asks for that no demand here can say."""
    accelerator = resources.gpu_accelerator
    if accelerator.device and (problem := GPU_TYPE.problem(accelerator_type(accelerator))):
        yield f"asks for an accelerator, and {problem}"
    if resources.HasField("shared_memory"):
        yield "asks for a volume of shared memory"


def data_of_tasks(closure: Any) -> Iterator[str]:
    """The inputs and outputs of tasks whose values are kept outside of messages, each in words."""
    for task in closure.tasks:
        yield from data_of_task(task.template)


def data_of_task(template: Any) -> Iterator[str]:
    if is_raw_container(template):
        return  # its files are kept here
    interface = template.interface
    for word, variables in (("input", interface.inputs.variables), ("output", interface.outputs.variables)):
        for variable in sorted(variables):
            if _has_files(variables[variable].type):
                words = f"task {template.id.name} has the {word} {variable}"
                yield f"{words}, a file, a directory, a data frame or a pickled value"


def _has_files(kind: Any) -> bool:
    case = kind.WhichOneof("type")
    if case == "collection_type":
        return _has_files(kind.collection_type)
    if case == "map_value_type":
        return _has_files(kind.map_value_type)
    if case == "union_type":
        return any(_has_files(variant) for variant in kind.union_type.variants)
    # A data class travels in messages, the files that it names do not.
    return case in _FILE_TYPES or any(map(_has_files, kind.structure.dataclass_type.values()))


def task_parameters(interface: Any, optional: frozenset[str]) -> Any:
    """What an execution of a task expects: all inputs but those that may be None."""
    expected = interface_pb2.ParameterMap()
    for name, variable in interface.inputs.variables.items():
        expected.parameters[name].var.CopyFrom(variable)
        expected.parameters[name].required = name not in optional
    return expected


def complete_inputs(expected: Any, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """All inputs of an execution with defaults and fixed values, and all mistakes."""
    caster, mistakes = Caster(), []
    values = literals_pb2.LiteralMap()
    parameters = expected.parameters
    for name in sorted(set(given) - set(parameters)):
        mistakes.append(f"invalid input {name[:80]}" + (": its value is fixed" if name in fixed else ""))
    for name in sorted(parameters):
        parameter = parameters[name]
        if name in given:
            mistake = value_mistake(name, given[name], parameter.var.type, caster)
            mistakes += [mistake] if mistake else []
            values.literals[name].CopyFrom(given[name])
        elif parameter.HasField("default"):
            values.literals[name].CopyFrom(parameter.default)
        elif parameter.required:
            mistakes.append(f"expected_inputs {name} missing")
    for name, literal in fixed.items():
        values.literals[name].CopyFrom(literal)
    return values, mistakes


def value_mistake(name: str, literal: Any, wanted: Any, caster: Caster) -> str:
    """Why a value is not of the type that is wanted. Empty: it is."""
    kind = type_of_literal(literal)
    if kind is None:
        return f"invalid {name} input: it has no value"
    if not caster.can_cast(kind, wanted):
        return f"invalid {name} input wrong type. Expected {show_type(wanted)}, but got {show_type(kind)}"
    if wanted.WhichOneof("type") == "enum_type":
        value = literal.scalar.primitive.string_value
        if value not in wanted.enum_type.values:
            return f"invalid {name} input: [{value[:80]}] is none of {list(wanted.enum_type.values[:20])}"
    return ""
