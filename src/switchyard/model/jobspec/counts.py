"""How many: a number, a set of acceptable ones (RFC 22), or a range (RFC 45). Pure.

Whatever fits with more fits with less, so a range or a set is satisfied exactly when its least member is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import COUNT_MAX

_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12})|(\+))?(?::([0-9]{1,12})(?::([+*^]))?)?\Z")
OPERATORS = ("+", "*", "^")


def is_no_gpu(vertex: Mapping[str, Any]) -> bool:
    """Whether a vertex says that there is no GPU: Flux's version 1 allows a count of 0 there, and nowhere else."""
    count = vertex.get("count")
    return vertex.get("type") == "gpu" and count == 0 and not isinstance(count, bool)


def least_count(value: Any, *, place: str, most: int = COUNT_MAX) -> int:
    """The least acceptable count, from 1 up."""
    if isinstance(value, Mapping):
        return _least_of_mapping(value, place, most)
    if isinstance(value, str):
        return _least_of_text(value, place, most)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _number(value, place, most)


def _least_of_mapping(value: Mapping[str, Any], place: str, most: int) -> int:
    unknown = set(value) - {"min", "max", "operator", "operand"}
    if unknown:
        raise Malformed(
            f"{place}: a range has min, max, operator and operand, not {str(min(map(str, unknown)))[:40]!r}."
        )
    least = _number(value.get("min"), f"{place}.min", most)
    if value.get("max") is not None and _number(value["max"], f"{place}.max", 2**63 - 1) < least:
        raise Malformed(f"{place}: the range is backwards.")
    if ("operator" in value) != ("operand" in value):
        raise Malformed(f"{place}: operator and operand come together.")
    if "operator" in value and value.get("max") is None:
        raise Malformed(f"{place}: operator and operand need a max.")
    if "operator" in value:
        operand = _number(value["operand"], f"{place}.operand", 2**63 - 1)
        _check_steps(str(value["operator"]), operand, least, place)
    return least


def _least_of_text(text: str, place: str, most: int) -> int:
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1]
    if "," in bare:
        try:
            return _number(next(iter(IdSet.parse(bare))), place, most)
        except ValueError as exc:
            raise Malformed(f"{place}: {exc}.") from exc
    match = _RANGE.match(bare)
    if not match:
        raise Malformed(f"{place}: {text[:60]!r} is not a count, a set such as 2,4,8 or a range such as 2-8 or 4+.")
    least = _number(int(match[1]), place, most)
    if match[2] and int(match[2]) < least:
        raise Malformed(f"{place}: the range {text[:60]!r} is backwards.")
    if match[4]:
        _check_steps(match[5] or "+", int(match[4]), least, place)
    return least


def _check_steps(operator: str, operand: int, least: int, place: str) -> None:
    if operator not in OPERATORS:
        raise Malformed(f"{place}: {operator[:20]!r} is not one of + * ^.")
    if operand < (1 if operator == "+" else 2) or (operator == "^" and least < 2):
        raise Malformed(f"{place}: with {operator} and {operand} a range from {least} never grows.")


def _number(value: Any, place: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Malformed(f"{place}: expected a whole number from 1 to {most:,}, not {str(value)[:60]!r}.")
    return value
