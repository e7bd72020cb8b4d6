"""The elements of a map node: how many there are, what each of them left, and what that means for the node. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any

import msgspec
from flyteidl.core import literals_pb2

from switchyard.features.flyte.workflow.engine.execution_state import AttemptFailure

ELEMENTS_MAX = 100_000  # of one map
PART_SIZE = 500  # elements that are stored in one row
RANGE_MIN = 100  # elements of one array, if the owner may not have all of them at once
SYSTEM_RETRIES = 3  # as for tasks
ERROR_CHARS_MAX = 4000


class MapRefused(Exception):
    """A map that cannot run. `code`: Flyte's word where it has one."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ElementState(IntEnum):
    """Stored as one byte for each element."""

    OPEN = 0  # waits, or runs
    SUCCEEDED = 1
    FAILED = 2  # for good
    AGAIN = 3  # failed, and is in the next array
    CACHED = 4  # has its outputs from the cache
    STOPPED = 5


@dataclass(frozen=True, slots=True)
class MapShape:
    """`minimum`: elements that must succeed. `parallelism`: elements that run at once; 0: no bound."""

    size: int
    minimum: int
    parallelism: int = 0
    runs_all: bool = False
    bound: tuple[str, ...] = ()  # inputs that each element gets whole


class PartResults(msgspec.Struct, omit_defaults=True):
    """What the elements of one part left, by index: outputs, and how often an element failed: by itself, otherwise."""

    outputs: dict[int, bytes] = {}
    failures: dict[int, tuple[int, int]] = {}


def criteria_mistake(array: Any) -> str:
    """Why nothing can be the least number of successes of a map. Empty: the number is good."""
    if array.WhichOneof("success_criteria") != "min_success_ratio":
        return ""
    ratio = array.min_success_ratio
    return "" if 0 <= ratio <= 1 else f"min_success_ratio is {ratio:g}; it must be from 0 to 1"  # NaN is neither


def map_shape(array: Any, inputs: Any) -> MapShape:
    """How many elements a map has, from the values of its inputs. Raises MapRefused."""
    if mistake := criteria_mistake(array):
        raise MapRefused("InvalidArrayNode", mistake)
    bound = set(array.bound_inputs)
    lists = {
        name: len(literal.collection.literals)
        for name, literal in inputs.literals.items()
        if name not in bound and literal.WhichOneof("value") == "collection"
    }
    if len(set(lists.values())) > 1:
        lengths = ", ".join(f"{name} has {length}" for name, length in sorted(lists.items())[:20])
        raise MapRefused("InvalidArrayLength", f"the lists of a map differ in length: {lengths}")
    if not lists and set(inputs.literals) - bound:
        raise MapRefused("InvalidArrayLength", "no input of the map is a list")
    size = next(iter(lists.values()), 1)
    if size > ELEMENTS_MAX:
        raise MapRefused("InvalidArrayLength", f"the map has {size} elements; the most is {ELEMENTS_MAX}")
    minimum = _minimum(array, size)
    if minimum > size:
        raise MapRefused("InvalidArrayNode", f"min_successes is {minimum}, and the map has {size} elements")
    return MapShape(size, minimum, array.parallelism, bool(array.run_all_sub_nodes), tuple(array.bound_inputs))


def _minimum(array: Any, size: int) -> int:
    """A ratio is stored in 32 bits: 0.6 comes as 0.60000002. Six digits are what somebody wrote: 3 of 5 are enough."""
    criteria = array.WhichOneof("success_criteria")
    if criteria == "min_successes":
        return int(array.min_successes)
    if criteria is None:
        return size
    return math.ceil(Fraction(f"{array.min_success_ratio:.6f}") * size)


def element_inputs(array_bound: Sequence[str], inputs: Any, index: int) -> Any:
    """The inputs of one element: of each list its own value, and bound inputs whole."""
    bound = set(array_bound)
    own = literals_pb2.LiteralMap()
    for name, literal in inputs.literals.items():
        is_list = name not in bound and literal.WhichOneof("value") == "collection"
        own.literals[name].CopyFrom(literal.collection.literals[index] if is_list else literal)
    return own


def gather_outputs(declared: Sequence[str], size: int, parts: Mapping[int, PartResults]) -> Any:
    """The outputs of a map: for each variable a list in the order of the elements, with None for those that failed."""
    gathered = literals_pb2.LiteralMap()
    lists = [(name, gathered.literals[name].collection) for name in declared]
    for _, values in lists:
        values.SetInParent()
    for index in range(size):
        part = parts.get(index // PART_SIZE)
        body = part.outputs.get(index) if part is not None else None
        own: Any = literals_pb2.LiteralMap.FromString(body) if body is not None else None
        for name, values in lists:
            literal = values.literals.add()
            if own is None:
                literal.scalar.none_type.SetInParent()
            else:
                literal.CopyFrom(own.literals[name])
    return gathered


def next_state(failure: AttemptFailure, user: int, system: int, *, retries: int) -> ElementState:
    """What an element does after a failure. `user`, `system`: its failures, with this one."""
    may = system <= SYSTEM_RETRIES if failure.is_system else user <= retries
    return ElementState.AGAIN if failure.is_recoverable and may else ElementState.FAILED


def is_lost(shape_size: int, minimum: int, failed: int) -> bool:
    """Whether the minimum cannot be reached any more."""
    return shape_size - failed < minimum


def map_failure(size: int, minimum: int, failed: int, first: tuple[int, AttemptFailure]) -> AttemptFailure:
    """The failure of a map, with the first failure of an element."""
    index, failure = first
    words = f"{failed} of {size} elements failed, and {minimum} have to succeed. Element {index}: {failure.message}"
    return AttemptFailure(failure.code, words[:ERROR_CHARS_MAX], is_system=failure.is_system)


def elements_to_start(wanted: int, *, room: int | None, limit: int) -> int:
    """How many elements the next array has. 0: the map waits.

    `room`: tasks that the owner may have more; None: no bound. `limit`: of the owner. A map does not begin with a few
    elements only because a few places are free: it would become many small arrays.
    """
    if room is None or room >= wanted:
        return wanted
    return room if room >= min(wanted, limit, RANGE_MIN) else 0


def part_size(size: int, part: int) -> int:
    return min(PART_SIZE, size - part * PART_SIZE)
