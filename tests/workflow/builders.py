"""Messages of workflows, built in few words: types by letters, promises as texts."""

from __future__ import annotations

from typing import Any

from flyteidl.core import identifier_pb2, interface_pb2, literals_pb2, types_pb2, workflow_pb2

from switchyard.features.flyte.workflow.compile.compiler import WorkflowSource, compile_workflow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.signature import Signature, of_interface

INT = types_pb2.LiteralType(simple=types_pb2.INTEGER)
TEXT = types_pb2.LiteralType(simple=types_pb2.STRING)
FLOAT = types_pb2.LiteralType(simple=types_pb2.FLOAT)
ERROR = types_pb2.LiteralType(simple=types_pb2.ERROR)
NONE = types_pb2.LiteralType(simple=types_pb2.NONE)
STRUCT = types_pb2.LiteralType(simple=types_pb2.STRUCT)


def list_of(kind: Any) -> Any:
    return types_pb2.LiteralType(collection_type=kind)


def map_of(kind: Any) -> Any:
    return types_pb2.LiteralType(map_value_type=kind)


def union(*kinds: Any) -> Any:
    return types_pb2.LiteralType(union_type=types_pb2.UnionType(variants=kinds))


def enum(*values: str) -> Any:
    return types_pb2.LiteralType(enum_type=types_pb2.EnumType(values=values))


def tagged(kind: Any, tag: str) -> Any:
    copy = types_pb2.LiteralType()
    copy.CopyFrom(kind)
    copy.structure.tag = tag
    return copy


def interface(inputs: dict[str, Any] | None = None, outputs: dict[str, Any] | None = None) -> Any:
    def variables(kinds: dict[str, Any]) -> Any:
        return interface_pb2.VariableMap(
            variables={name: interface_pb2.Variable(type=kind) for name, kind in kinds.items()}
        )

    return interface_pb2.TypedInterface(inputs=variables(inputs or {}), outputs=variables(outputs or {}))


def an_id(name: str, kind: int = identifier_pb2.TASK, version: str = "v1") -> Any:
    return identifier_pb2.Identifier(resource_type=kind, project="p", domain="d", name=name, version=version)


def data(value: Any) -> Any:
    """`"@n0.o0"` is a promise, `"@.x"` an input of the workflow; lists and dictionaries are bindings of their parts."""
    if isinstance(value, literals_pb2.BindingData):
        return value
    if isinstance(value, list):
        return literals_pb2.BindingData(
            collection=literals_pb2.BindingDataCollection(bindings=[data(item) for item in value])
        )
    if isinstance(value, dict):
        inner = {key: data(item) for key, item in value.items()}
        return literals_pb2.BindingData(map=literals_pb2.BindingDataMap(bindings=inner))
    if isinstance(value, str) and value.startswith("@"):
        node, _, var = value[1:].partition(".")
        return literals_pb2.BindingData(promise=types_pb2.OutputReference(node_id=node, var=var))
    return literals_pb2.BindingData(scalar=scalar(value))


def scalar(value: Any) -> Any:
    if value is None:
        return literals_pb2.Scalar(none_type=literals_pb2.Void())
    fields = {bool: "boolean", int: "integer", float: "float_value", str: "string_value"}
    return literals_pb2.Scalar(primitive=literals_pb2.Primitive(**{fields[type(value)]: value}))


def bindings(values: dict[str, Any]) -> list[Any]:
    return [literals_pb2.Binding(var=name, binding=data(value)) for name, value in values.items()]


def task_node(node_id: str, task: str = "add", upstream: tuple[str, ...] = (), **inputs: Any) -> Any:
    return workflow_pb2.Node(
        id=node_id,
        inputs=bindings(inputs),
        upstream_node_ids=upstream,
        task_node=workflow_pb2.TaskNode(reference_id=an_id(task)),
    )


def sub_node(node_id: str, name: str, **inputs: Any) -> Any:
    reference = workflow_pb2.WorkflowNode(sub_workflow_ref=an_id(name, identifier_pb2.WORKFLOW))
    return workflow_pb2.Node(id=node_id, inputs=bindings(inputs), workflow_node=reference)


def plan_node(node_id: str, name: str, **inputs: Any) -> Any:
    reference = workflow_pb2.WorkflowNode(launchplan_ref=an_id(name, identifier_pb2.LAUNCH_PLAN))
    return workflow_pb2.Node(id=node_id, inputs=bindings(inputs), workflow_node=reference)


def gate_node(node_id: str, gate: Any, **inputs: Any) -> Any:
    return workflow_pb2.Node(id=node_id, inputs=bindings(inputs), gate_node=gate)


def a_condition(var: str, value: Any) -> Any:
    return {
        "comparison": {
            "operator": "GT",
            "left_value": {"var": var},
            "right_value": {"primitive": scalar(value).primitive},
        }
    }


def branch_node(node_id: str, *arms: Any, otherwise: Any = None, var: str = "x", value: Any = 1, **inputs: Any) -> Any:
    """A branch whose cases all compare one of its inputs. `otherwise`: its else node."""
    cases = [workflow_pb2.IfBlock(condition=a_condition(var, value), then_node=arm) for arm in arms]
    block = workflow_pb2.IfElseBlock(case=cases[0], other=cases[1:])
    if otherwise is not None:
        block.else_node.CopyFrom(otherwise)
    return workflow_pb2.Node(id=node_id, inputs=bindings(inputs), branch_node=workflow_pb2.BranchNode(if_else=block))


def a_template(*nodes: Any, name: str = "wf", gives: dict[str, tuple[Any, Any]] | None = None, **inputs: Any) -> Any:
    """A workflow. `gives`: type and binding of each output."""
    gives = gives or {}
    return workflow_pb2.WorkflowTemplate(
        id=an_id(name, identifier_pb2.WORKFLOW),
        interface=interface(inputs, {out: kind for out, (kind, _) in gives.items()}),
        nodes=nodes,
        outputs=bindings({out: value for out, (_, value) in gives.items()}),
    )


def known(kind: EntityKind, name: str) -> EntityId:
    return EntityId(kind, "p", "d", name, "v1")


PLAN = Signature({"a": INT, "b": INT}, frozenset({"a"}), {"o0": INT})
KNOWN: dict[EntityId, Signature] = {
    known(EntityKind.TASK, "add"): of_interface(interface({"a": INT, "b": INT}, {"o0": INT})),
    known(EntityKind.TASK, "one"): of_interface(interface({}, {"o0": INT})),
    known(EntityKind.TASK, "say"): of_interface(interface({"text": TEXT}, {"o0": TEXT})),
    known(EntityKind.TASK, "total"): of_interface(interface({"many": list_of(INT)}, {"o0": INT})),
    known(EntityKind.TASK, "tidy"): of_interface(interface({"x": INT, "err": union(ERROR, NONE)}, {"o0": INT})),
    known(EntityKind.TASK, "paint"): of_interface(interface({"colour": enum("red", "blue")})),
    known(EntityKind.TASK, "maybe"): of_interface(interface({"x": union(INT, NONE)}, {"o0": INT})),
    known(EntityKind.TASK, "either"): of_interface(interface({"x": union(list_of(INT), list_of(TEXT))})),
    known(EntityKind.LAUNCH_PLAN, "plan"): PLAN,
}


def compiled(template: Any, *subs: Any) -> tuple[Any, Mistakes]:
    return compile_workflow(WorkflowSource(template, subs, KNOWN))


def approval(signal_id: str = "ok") -> Any:
    return workflow_pb2.GateNode(approve=workflow_pb2.ApproveCondition(signal_id=signal_id))


def wish(kind: Any = INT, signal_id: str = "value") -> Any:
    condition = workflow_pb2.SignalCondition(signal_id=signal_id, type=kind, output_variable_name="o0")
    return workflow_pb2.GateNode(signal=condition)
