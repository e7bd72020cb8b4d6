"""The inputs of a failure node: it learns which node failed, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyteidl.core import literals_pb2, types_pb2


def with_error(inputs: Any, variables: Mapping[str, Any], *, failed_node: str, error: Any) -> Any:
    """The inputs with the error in each input that takes one. As in Flyte, such an input is a union with ERROR.

    `variables`: what the node takes. The workflow itself binds None to such an input.
    """
    given = literals_pb2.LiteralMap()
    given.CopyFrom(inputs)
    for name, variable in variables.items():
        kind = _error_type(variable.type)
        if kind is not None:
            union = given.literals[name].scalar.union
            union.type.CopyFrom(kind)
            union.value.scalar.error.failed_node_id = failed_node
            union.value.scalar.error.message = error.message
    return given


def _error_type(kind: Any) -> Any | None:
    return next((one for one in kind.union_type.variants if one.simple == types_pb2.ERROR), None)
