"""What an entity takes and gives: the part of it that the compiler needs to know of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import types_pb2

Types = Mapping[str, Any]  # a LiteralType by the name of a variable


@dataclass(frozen=True, slots=True)
class Signature:
    """`required`: the inputs that must be bound."""

    inputs: Types = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    outputs: Types = field(default_factory=dict)


def of_interface(interface: Any) -> Signature:
    """The signature of a task or a workflow."""
    inputs = {name: variable.type for name, variable in interface.inputs.variables.items()}
    outputs = {name: variable.type for name, variable in interface.outputs.variables.items()}
    return Signature(inputs, required_inputs(inputs), outputs)


def of_launch_plan(closure: Any) -> Signature:
    """The signature of a launch plan. Inputs with a default may be left out; fixed ones are no inputs."""
    parameters = closure.expected_inputs.parameters
    inputs = {name: parameter.var.type for name, parameter in parameters.items()}
    needed = {name: inputs[name] for name, parameter in parameters.items() if parameter.required}
    outputs = {name: variable.type for name, variable in closure.expected_outputs.variables.items()}
    return Signature(inputs, required_inputs(needed), outputs)


def of_array(inner: Signature, array: Any) -> Signature:
    """The signature of an array node: that of its inner node, which flytekit has already made one of lists.

    It has not where the inner node is a launch plan or a task of somebody else's.
    """
    if not array.is_original_sub_node_interface.value:
        return inner
    bound: Collection[str] = set(array.bound_inputs)
    inputs = {name: kind if name in bound else _list_of(kind) for name, kind in inner.inputs.items()}
    return Signature(inputs, inner.required, {name: _list_of(kind) for name, kind in inner.outputs.items()})


def required_inputs(inputs: Types) -> frozenset[str]:
    """An input that may be None may be left out."""
    return frozenset(name for name, kind in inputs.items() if not _is_optional(kind))


def _is_optional(kind: Any) -> bool:
    return any(
        variant.WhichOneof("type") == "simple" and variant.simple == types_pb2.NONE
        for variant in kind.union_type.variants
    )


def _list_of(kind: Any) -> Any:
    return types_pb2.LiteralType(collection_type=kind)
