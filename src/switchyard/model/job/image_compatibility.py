"""What an image needs of the machine that runs it: architecture, kernel, C library, GPU driver, MPI. Pure values.

A need names a field of the subsystem `system`, which agents fill per node (`yard agent discover --per-node`). It comes
with the job, in a file, or in the image's own metadata; this module knows the forms, not the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.model.jobspec.quantity import Int64
from switchyard.model.rules.names import TEXT_PATTERN, LabelKey
from switchyard.model.wire.decode import convert
from switchyard.model.wire.schema import field_given

SYSTEM_SUBSYSTEM = "system"
COMPATIBILITY_MAX = 64
ANNOTATION_PREFIX = "io.switchyard.compatibility."  # of an image's annotations and labels: …architecture, …gpu-driver
# The architectures that Go, and so OCI, names otherwise than `uname -m`; the latter is what a node says of itself.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "loong64": "loongarch64"}

_BOUND = re.compile(r"(>=|<=)\s*([^\s<>=]{1,128})(?:\s+(.*))?\Z", re.DOTALL)

FieldText = Annotated[str, Meta(min_length=1, max_length=256, pattern=TEXT_PATTERN)]
VersionBound = FieldText | Int64  # no fractions: YAML reads 6.10 as 6.1, so a version with a dot has to be a text


class Compatibility(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One need: the field equals a value, or its version lies between `min` and `max`, both included."""

    SCHEMA: ClassVar[dict[str, Any]] = {
        "oneOf": [field_given("equals"), {"anyOf": [field_given("min"), field_given("max")]}]
    }
    field: LabelKey
    equals: bool | Int64 | float | FieldText | None = None
    min: VersionBound | None = None
    max: VersionBound | None = None

    def __post_init__(self) -> None:
        if (self.equals is None) == (self.min is None and self.max is None):
            raise ValueError(f"{self.field}: give either `equals`, or `min` and `max`, or one of these")


CompatibilityList = Annotated[list[Compatibility], Meta(max_length=COMPATIBILITY_MAX)]


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    compatibility: CompatibilityList


def compatibility_from_document(form: Any, *, where: str) -> list[Compatibility]:
    """A file's or an artifact's needs: a list of them, or `compatibility:` with that list."""
    document = {"compatibility": form} if isinstance(form, list) else form
    return convert(document, _Document, where=where).compatibility


def compatibility_from_annotations(notes: Mapping[str, str], *, where: str) -> list[Compatibility]:
    """The needs among annotations or labels: `…compatibility.kernel: ">=5.10 <=6"`, `…compatibility.mpi: "4.1"`."""
    needs = [
        {"field": name.removeprefix(ANNOTATION_PREFIX), **_parse_requirement(value)}
        for name, value in sorted(notes.items())
        if name.startswith(ANNOTATION_PREFIX)
    ]
    return compatibility_from_document(needs, where=where)


def _parse_requirement(value: str) -> dict[str, str]:
    """`x86_64`, `>=535`, `<=8` or `>=535 <=550`."""
    bounds: dict[str, str] = {}
    remaining: str | None = value.strip()
    while remaining and (bound := _BOUND.match(remaining)):
        bounds["min" if bound[1] == ">=" else "max"] = bound[2]
        remaining = bound[3]
    return bounds if bounds and not remaining else {"equals": value.strip()}


def merge_compatibility(*lists: list[Compatibility], where: str) -> list[Compatibility]:
    """All needs together: each must hold, so a field that is named twice is asked twice. Equal ones are one."""
    merged = list(dict.fromkeys(need for needs in lists for need in needs))
    if len(merged) > COMPATIBILITY_MAX:
        raise Malformed(f"{where}: {len(merged)} needs of compatibility; the most is {COMPATIBILITY_MAX}.")
    return merged


def architecture_of(name: str) -> str:
    """As `uname -m` says it, whoever wrote it."""
    return ARCHITECTURES.get(name, name)
