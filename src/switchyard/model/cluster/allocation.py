"""What a cluster gave to an attempt: CPUs, memory and GPUs, as its batch system tells. Pure values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.rules.names import TEXT_PATTERN, printable_line

GPU_TYPES_MAX = 16  # no node has as many, and a list of nodes is cut
DIFFERENCES_MAX = 8
TYPE_CHARS_MAX = 64
WORDS_CHARS_MAX = 256
_TypeName = Annotated[str, Meta(min_length=1, max_length=TYPE_CHARS_MAX, pattern=TEXT_PATTERN)]
_Words = Annotated[str, Meta(max_length=WORDS_CHARS_MAX, pattern=TEXT_PATTERN)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class GivenResources(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is None or empty was not told. `differs`: where it is less or other than what the job asked for."""

    cores: Annotated[float, Meta(ge=0, le=1e9)] | None = None  # Kubernetes counts parts of them
    memory_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    gpus: _Count | None = None
    gpu_types: Annotated[tuple[_TypeName, ...], Meta(max_length=GPU_TYPES_MAX)] = ()
    gpu_ids: _Words = ""  # their numbers on the node, where the cluster tells them
    differs: Annotated[tuple[_Words, ...], Meta(max_length=DIFFERENCES_MAX)] = ()


def shown_types(types: set[str]) -> tuple[str, ...]:
    """Names of types as they may stand in an `GivenResources`."""
    names = sorted(printable_line(name)[:TYPE_CHARS_MAX] for name in types if name)
    return tuple(names[:GPU_TYPES_MAX])
