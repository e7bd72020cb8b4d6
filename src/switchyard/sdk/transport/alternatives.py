"""Alternatives of a job as people write them, made into whole sets of resources. No I/O.

A mapping is a whole set. A text says what differs from the first set: `gpu=a100-80gb:4` or `gpus=0, cores=32`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.job.job import Resources

FlatFields = dict[str, Any]

RESOURCE_FIELDS = Resources.__struct_fields__
TEXT_CHARS_MAX = 4096
# Say together which GPUs: an alternative that names one of them takes none from the first set.
GPU_FIELDS = ("gpus", "gpu_type", "gpu_memory")
PLAIN_FIELDS = tuple(name for name in RESOURCE_FIELDS if name not in ("limits", "devices"))
WORDS = ("gpu", "device", *PLAIN_FIELDS)
HOW = 'Write what differs from the first choice, as in "gpu=a100-80gb:4" or "gpus=0, cores=32, time_limit=4h".'


def split_gpu_choices(text: str) -> list[str]:
    """Split `h100:2 or a100-80gb:4`. Each choice is checked by the caller."""
    if not text.isprintable():
        raise ValueError(
            "there is a line end or another hidden character in it; write h100:2 or a100-80gb:4 in one line"
        )
    choices: list[list[str]] = [[]]
    for word in filter(None, text.split(" ")):
        if word == "or":
            choices.append([])
        else:
            choices[-1].append(word)
    if len(choices) > 1 and not all(choices):
        raise ValueError("a choice is missing beside `or`; write it as in: h100:2 or a100-80gb:4")
    if any(len(words) > 1 for words in choices):
        raise ValueError("write `or` between two choices, and one type in each, as in: h100:2 or a100-80gb:4")
    return ["".join(words) for words in choices]


def whole_sets(flat: FlatFields, laid_over: Mapping[str, Any], *, where: str) -> list[Any]:
    """Return the job's alternatives as whole sets. `laid_over`: flags, which win over the sets of a file."""
    alternatives = flat["alternatives"]
    if isinstance(alternatives, str) or not isinstance(alternatives, Iterable) or isinstance(alternatives, Mapping):
        raise Malformed(f"{where}: alternatives: expected a list of sets of resources.", next_step=HOW)
    first = {name: flat[name] for name in RESOURCE_FIELDS if name in flat}
    sets: list[Any] = []
    for number, item in enumerate(alternatives, 2):
        if isinstance(item, str):
            sets.append(_with_changes(first, _read_changes(item, where=f"{where}: alternative {number}")))
        else:
            sets.append({**item, **laid_over} if isinstance(item, Mapping) else item)
    return sets


def _with_changes(first: FlatFields, changes: FlatFields) -> FlatFields:
    if changes.keys().isdisjoint(GPU_FIELDS):
        return {**first, **changes}
    kept = {name: value for name, value in first.items() if name not in GPU_FIELDS}
    if isinstance(limits := kept.get("limits"), Mapping):
        kept["limits"] = {name: value for name, value in limits.items() if name != "gpus"}
    return {**kept, **changes}


def _read_changes(text: str, *, where: str) -> FlatFields:
    """Read `gpu=a100:4, memory=64G`."""
    if len(text) > TEXT_CHARS_MAX or not text.isprintable():
        raise Malformed(f"{where}: it is too long, or has a line end or another hidden character.", next_step=HOW)
    changes: FlatFields = {}
    for piece in text.split(","):
        word, sign, value = piece.strip().partition("=")
        name = word.strip().replace("-", "_")
        value = value.strip()
        if not sign or not value:
            raise Malformed(f"{where}: {piece.strip()[:80]!r} is no NAME=VALUE.", next_step=HOW)
        if name not in WORDS:
            raise Malformed(f"{where}: there is no {name[:80]!r}.", next_step=f"Known are: {', '.join(WORDS)}.")
        if name == "device":
            changes.setdefault("devices", []).append(value)
            continue
        for field, item in _gpu_fields(value, where=where) if name == "gpu" else ((name, _amount(name, value)),):
            if field in changes:
                raise Malformed(f"{where}: {field} is said twice.", next_step=HOW)
            changes[field] = item
    return changes


def _gpu_fields(value: str, *, where: str) -> tuple[tuple[str, Any], ...]:
    kind, sign, count = value.partition(":")
    if not kind or (sign and not (count.isascii() and count.isdigit() and int(count))):
        raise Malformed(f"{where}: gpu={value[:80]} is no TYPE or TYPE:N.", next_step=HOW)
    return (("gpu_type", kind), ("gpus", int(count) if sign else 1))


def _amount(name: str, value: str) -> int | str:
    return int(value) if value.isascii() and value.isdigit() and name != "gpu_type" else value
