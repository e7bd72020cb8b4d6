"""Values that name files which are stored here, under an address of ours. An attempt gets them as files of its job.

Tasks do not know our addresses. So an attempt reads a path in its folder in place of each address, and a task that
passes such a file on means the address. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from switchyard.features.flyte.workflow.tasks.task_command import FOLDER

SCHEME = "switchyard://"
FILES_FOLDER = f"{FOLDER}/files"
FILES_MAX = 1000  # of one attempt


def places_of(literals: Any) -> Iterator[Any]:
    """The parts of values that have a `uri`, in a fixed order."""
    for name in sorted(literals.literals):
        yield from _places(literals.literals[name])


def uploaded_paths(inputs: Any) -> dict[str, str]:
    """The path of each uploaded file in the folder of the job, by its address."""
    addresses = dict.fromkeys(place.uri for place in places_of(inputs) if place.uri.startswith(SCHEME))
    return {
        address: f"{FILES_FOLDER}/{number}/{address.rpartition('/')[2]}" for number, address in enumerate(addresses)
    }


def with_places(literals: Any, new: Mapping[str, str]) -> Any:
    """The values with other places in place of these."""
    if not new:
        return literals
    changed = type(literals)()
    changed.CopyFrom(literals)
    for place in places_of(changed):
        place.uri = new.get(place.uri, place.uri)
    return changed


def with_addresses(outputs: Any, inputs: Any) -> Any:
    """The outputs of an attempt with addresses in place of paths that only its job's folder had."""
    return with_places(outputs, {path: address for address, path in uploaded_paths(inputs).items()})


def _places(literal: Any) -> Iterator[Any]:
    case = literal.WhichOneof("value")
    if case == "collection":
        for one in literal.collection.literals:
            yield from _places(one)
    elif case == "map":
        for key in sorted(literal.map.literals):
            yield from _places(literal.map.literals[key])
    elif case == "scalar":
        kind = literal.scalar.WhichOneof("value")
        if kind == "union":
            yield from _places(literal.scalar.union.value)
        elif kind in ("blob", "schema", "structured_dataset"):
            yield getattr(literal.scalar, kind)
