"""Checks what is bound to the inputs of a node, and finds the nodes that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import types_pb2
from google.protobuf import text_format

from switchyard.features.flyte.workflow.compile.connections import START
from switchyard.features.flyte.workflow.compile.mistakes import Mistakes
from switchyard.features.flyte.workflow.compile.signature import Signature, Types
from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.literals import type_of_scalar

SHOWN_TYPE_BYTES = 1000  # a larger type is only named
# The outputs of a node by its id. KeyError: there is no such node. None: its outputs are not known, which is reported.
OutputsOf = Callable[[str], Types | None]


@dataclass
class BoundInputs:
    """What the inputs of one node are bound to. `types`: those that are known; `upstream`: where promises lead."""

    types: dict[str, Any] = field(default_factory=dict)
    upstream: set[str] = field(default_factory=set)


@dataclass
class BindingChecker:
    """Checks the bindings of one template. An empty node id of a promise becomes the start node, in place."""

    outputs_of: OutputsOf
    caster: Caster
    mistakes: Mistakes

    def check(self, node: str, bindings: Iterable[Any], signature: Signature | None) -> BoundInputs:
        """Check all bindings of a node. No signature: its inputs are what is bound, as of a branch or a gate."""
        bound = BoundInputs()
        seen: set[str] = set()
        for binding in bindings:
            name = binding.var
            if name in seen:
                self.mistakes.add("ParameterBoundMoreThanOnce", node, f"Input [{name}] is bound more than once.")
                continue
            seen.add(name)
            if signature is not None and name not in signature.inputs:
                self.mistakes.add("VariableNameNotFound", node, f"Variable [{name}] not found on node [{node}].")
                continue
            if not binding.HasField("binding"):
                self.mistakes.add("ValueRequired", node, f"Value required [{name}.binding].")
                continue
            expected = None if signature is None else signature.inputs[name]
            kind = _Check(self, node, name, self.mistakes, bound.upstream).run(binding.binding, expected)
            if kind is not None:
                bound.types[name] = kind
        if signature is not None:
            for name in sorted(signature.required - seen):
                self.mistakes.add("ParameterNotBound", node, f"Parameter not bound [{name}].")
        return bound


@dataclass
class _Check:
    """One binding."""

    checker: BindingChecker
    node: str
    variable: str
    mistakes: Mistakes
    upstream: set[str]

    def run(self, data: Any, expected: Any | None) -> Any | None:
        """The type of what is bound; None if it is not known. `expected` none: any type."""
        self.checker.caster.step()
        case = data.WhichOneof("value")
        if case == "promise":
            return self._promise(data.promise, expected)
        if case == "scalar":
            return self._value(type_of_scalar(data.scalar), data.scalar, expected)
        if case == "offloaded_metadata":
            return self._value(data.offloaded_metadata.inferred_type, None, expected)
        if case is None:
            self.mistakes.add("ParameterNotBound", self.node, f"Parameter not bound [{self.variable}].")
            return None
        if expected is not None and expected.WhichOneof("type") == "union_type":
            return self._variant(data, expected)
        return self._elements(data, case, expected)

    def _elements(self, data: Any, case: str, expected: Any | None) -> Any | None:
        """A list or a map of bindings."""
        field_name = "collection_type" if case == "collection" else "map_value_type"
        elements = data.collection.bindings if case == "collection" else data.map.bindings.values()
        if expected is not None and expected.WhichOneof("type") != field_name:
            self._mismatch(f"a {case}", expected)
            return None
        inner = None if expected is None else getattr(expected, field_name)
        kinds = [self.run(element, inner) for element in elements]
        kind = next((kind for kind in kinds if kind is not None), types_pb2.LiteralType(simple=types_pb2.NONE))
        return types_pb2.LiteralType(**{field_name: kind})

    def _variant(self, data: Any, expected: Any) -> Any | None:
        """A list or a map for a union: exactly one variant must take it."""
        fitting = []
        for variant in expected.union_type.variants:
            trial = _Check(self.checker, self.node, self.variable, Mistakes(), set())
            kind = trial.run(data, variant)
            if not trial.mistakes:
                fitting.append((kind, trial.upstream))
        if len(fitting) != 1:
            code = "AmbiguousBindingUnionValue" if fitting else "IncompatibleBindingUnionValue"
            words = "more than one variant" if fitting else "no variant"
            text = f"Input [{self.variable}]: {words} of {show_type(expected)} takes what is bound."
            self.mistakes.add(code, self.node, text)
            return None
        kind, upstream = fitting[0]
        self.upstream |= upstream
        return kind

    def _promise(self, promise: Any, expected: Any | None) -> Any | None:
        source = promise.node_id or START
        try:
            outputs = self.checker.outputs_of(source)
        except KeyError:
            self.mistakes.add("NodeReferenceNotFound", self.node, f"Referenced node [{source}] not found.")
            return None
        promise.node_id = source
        self.upstream.add(source)
        if outputs is None:
            return None
        if promise.var not in outputs:
            text = f"Variable [{promise.var}] not found on node [{source}]."
            self.mistakes.add("VariableNameNotFound", self.node, text)
            return None
        kind = self._at_path(outputs[promise.var], promise)
        if kind is None or expected is None or self.checker.caster.can_cast(kind, expected):
            return kind
        self._mismatch(f"{source}.{promise.var} of type {show_type(kind)}", expected)
        return None

    def _at_path(self, kind: Any, promise: Any) -> Any | None:
        """The type of an attribute: of an element of a list or a map, or of a field of a data class."""
        for step in promise.attr_path:
            case = kind.WhichOneof("type")
            fields: Mapping[str, Any] = kind.structure.dataclass_type
            if case in ("collection_type", "map_value_type"):
                kind = getattr(kind, case)
            elif fields:
                if step.string_value not in fields:
                    text = f"Field [{step.string_value}] not found in variable [{promise.var}]."
                    self.mistakes.add("FieldNotFound", self.node, text)
                    return None
                kind = fields[step.string_value]
        return kind

    def _value(self, kind: Any | None, scalar: Any | None, expected: Any | None) -> Any | None:
        if kind is None:
            self.mistakes.add("UnrecognizedValue", self.node, f"Input [{self.variable}] is bound to no known value.")
            return None
        if expected is None:
            return kind
        if not self.checker.caster.can_cast(kind, expected):
            self._mismatch(f"a value of type {show_type(kind)}", expected)
            return None
        if expected.WhichOneof("type") == "enum_type" and scalar is not None:
            value = scalar.primitive.string_value
            if value not in expected.enum_type.values:
                text = f"Input [{self.variable}]: [{value}] is none of {list(expected.enum_type.values[:20])}."
                self.mistakes.add("IllegalEnumValue", self.node, text)
        return kind

    def _mismatch(self, given: str, expected: Any) -> None:
        text = f"Input [{self.variable}] takes {show_type(expected)}, not {given}."
        self.mistakes.add("MismatchingTypes", self.node, text)


def show_type(kind: Any) -> str:
    """A type in a message: `INTEGER`, `[STRING]`, or protobuf's text."""
    case = kind.WhichOneof("type")
    if kind.ByteSize() > SHOWN_TYPE_BYTES:
        return f"a large {case}"
    if case == "simple":
        known = kind.simple in types_pb2.SimpleType.values()
        return str(types_pb2.SimpleType.Name(kind.simple)) if known else str(kind.simple)
    if case == "collection_type":
        return f"[{show_type(kind.collection_type)}]"
    if case == "map_value_type":
        return f"{{{show_type(kind.map_value_type)}}}"
    if case == "union_type":
        return " | ".join(show_type(variant) for variant in kind.union_type.variants[:10])
    if case == "enum_type":
        return f"enum {list(kind.enum_type.values[:20])}"
    return str(text_format.MessageToString(kind, as_one_line=True))[:200] if case else "no type"
