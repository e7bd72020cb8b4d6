"""Reads the artifacts that say what an image needs, each in its own form: ours, that of NFD, and compspec's. Pure.

    ours      {"compatibility": [{"field": …, "min": …}]}                       JSON
    NFD       compatibilities: [{rules: [{matchFeatures: […], matchAny: […]}]}]   YAML, v1alpha1
    compspec  {"compatibilities": [{"name": …, "attributes": {…}}]}              JSON, CompatibilitySpec 0.0.0

Only what nodes tell of their system becomes a need; the rest of a foreign form is left out. Of alternatives, what all
of them need is a need: a cluster is never refused for what another alternative does not ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from switchyard.errors import Malformed
from switchyard.model.job.image_compatibility import (
    ARCHITECTURES,
    Compatibility,
    architecture_of,
    compatibility_from_document,
)
from switchyard.model.wire.decode import convert, decode_json, load_yaml

ARTIFACT_TYPE = "application/vnd.oci.image-compatibility.v1"  # the working group's name for such an artifact
DOCUMENT_TYPE = "application/vnd.switchyard.image-compatibility.v1+json"  # our form of its contents
NFD_ARTIFACT_TYPE = "application/vnd.nfd.image-compatibility.v1alpha1"
NFD_DOCUMENT_TYPE = "application/vnd.nfd.image-compatibility.spec.v1alpha1+yaml"
COMPSPEC_TYPE = "application/org.supercontainers.compspec"  # of the artifact and of its layer
ARTIFACT_TYPES = frozenset({ARTIFACT_TYPE, NFD_ARTIFACT_TYPE, COMPSPEC_TYPE})
DOCUMENT_TYPES = frozenset({DOCUMENT_TYPE, NFD_DOCUMENT_TYPE, COMPSPEC_TYPE})
NFD_VERSION = "v1alpha1"
SETS_MAX = 64
TERMS_MAX = 256

_GPU_MODULES = {"nvidia": "nvidia", "amdgpu": "amd"}
_GPU_PCI_VENDORS = {"10de": "nvidia", "1002": "amd"}
_GPU_PCI_CLASSES = frozenset({"0300", "0302", "0380", "1200"})  # display controllers, processing accelerators
_ARCHITECTURES = frozenset(ARCHITECTURES) | frozenset(ARCHITECTURES.values())
_MPI_NAMES = {"openmpi": "openmpi", "open mpi": "openmpi", "mpich": "mpich", "intel mpi": "intel-mpi"}
# Attributes of compspec that mean a field of ours, of which the image needs at least this version.
_COMPSPEC_VERSIONS = {
    "org.supercontainers.mpi.version": "mpi",
    "org.supercontainers.glibc": "libc",
    "org.supercontainers.glibc.version": "libc",
    "org.supercontainers.kernel.version": "kernel",
}


class _Expression(Struct, frozen=True):
    op: str
    value: Annotated[list[str | int | float | bool], Meta(max_length=TERMS_MAX)] | str | int | float | bool | None = (
        None
    )

    @property
    def values(self) -> list[str]:
        given = [] if self.value is None else self.value if isinstance(self.value, list) else [self.value]
        return [str(value) for value in given]


class _FeatureTerm(Struct, frozen=True, rename="camel"):
    feature: str
    match_expressions: Annotated[dict[str, _Expression], Meta(max_length=TERMS_MAX)] | None = None


class _Alternative(Struct, frozen=True, rename="camel"):
    match_features: Annotated[list[_FeatureTerm], Meta(max_length=TERMS_MAX)] = []


class _Rule(Struct, frozen=True, rename="camel"):
    match_features: Annotated[list[_FeatureTerm], Meta(max_length=TERMS_MAX)] = []
    match_any: Annotated[list[_Alternative], Meta(max_length=TERMS_MAX)] = []


class _RuleSet(Struct, frozen=True):
    rules: Annotated[list[_Rule], Meta(max_length=TERMS_MAX)]


class _NfdDocument(Struct, frozen=True):
    version: str
    compatibilities: Annotated[list[_RuleSet], Meta(max_length=SETS_MAX)]

    def __post_init__(self) -> None:
        if self.version != NFD_VERSION:
            raise ValueError(f"version {self.version[:40]!r} of NFD's form is not known; known is {NFD_VERSION}")


class _CompspecSet(Struct, frozen=True):
    name: str
    attributes: Annotated[dict[str, str], Meta(max_length=TERMS_MAX)] = {}
    annotations: Annotated[dict[str, str], Meta(max_length=TERMS_MAX)] = {}  # as older versions call the attributes


class _CompspecDocument(Struct, frozen=True):
    compatibilities: Annotated[list[_CompspecSet], Meta(max_length=SETS_MAX)]


def read_document(media_type: str, body: bytes, *, where: str) -> list[Compatibility]:
    """The needs in a layer of one of `DOCUMENT_TYPES`. Raises Malformed if the layer breaks its form."""
    if media_type == NFD_DOCUMENT_TYPE:
        document: _NfdDocument = convert(load_yaml(body, where=where, is_fast=True), _NfdDocument, where=where)
        return _common([_needs_of_rules(each.rules) for each in document.compatibilities])
    if media_type == COMPSPEC_TYPE:
        spec: _CompspecDocument = convert(_json(body, where), _CompspecDocument, where=where)
        needs = (_compspec_need(name, value) for each in spec.compatibilities for name, value in _attributes(each))
        return list(dict.fromkeys(need for need in needs if need is not None))
    return compatibility_from_document(_json(body, where), where=where)


def _json(body: bytes, where: str) -> Any:
    try:
        return decode_json(body, Any)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}") from exc


def _needs_of_rules(rules: Sequence[_Rule]) -> list[Compatibility]:
    """All rules of a set must hold."""
    needs: list[Compatibility] = []
    for rule in rules:
        needs += _needs_of_terms(rule.match_features)
        needs += _common([_needs_of_terms(alternative.match_features) for alternative in rule.match_any])
    return list(dict.fromkeys(needs))


def _common(alternatives: Sequence[list[Compatibility]]) -> list[Compatibility]:
    """What every alternative needs."""
    first, *others = alternatives or [[]]
    return [need for need in dict.fromkeys(first) if all(need in other for other in others)]


def _needs_of_terms(terms: Sequence[_FeatureTerm]) -> list[Compatibility]:
    return [need for term in terms for need in _term_needs(term.feature, term.match_expressions or {})]


def _term_needs(feature: str, expressions: Mapping[str, _Expression]) -> Iterator[Compatibility]:
    if feature == "kernel.version":
        yield from _kernel_needs(expressions)
    elif feature == "kernel.loadedmodule":
        for module, vendor in _GPU_MODULES.items():
            if module in expressions and expressions[module].op == "Exists":
                yield Compatibility("gpu-vendor", equals=vendor)
    elif feature == "pci.device" and {"vendor", "class"} <= expressions.keys():
        vendors, classes = expressions["vendor"], expressions["class"]
        is_gpu = classes.op == "In" and classes.values and _GPU_PCI_CLASSES.issuperset(classes.values)
        if is_gpu and vendors.op == "In" and len(vendors.values) == 1 and vendors.values[0] in _GPU_PCI_VENDORS:
            yield Compatibility("gpu-vendor", equals=_GPU_PCI_VENDORS[vendors.values[0]])


def _kernel_needs(expressions: Mapping[str, _Expression]) -> Iterator[Compatibility]:
    full, major = expressions.get("full"), expressions.get("major")
    if full is not None and full.op == "In" and len(full.values) == 1:
        yield Compatibility("kernel-release", equals=full.values[0][:256])
    if major is None or not major.values or not all(value.isdecimal() and len(value) < 6 for value in major.values):
        return
    least = min(map(int, major.values))
    if major.op in ("Gt", "GtLt"):
        yield Compatibility("kernel", min=str(least + 1))
    elif major.op in ("Ge", "GeLe", "In"):
        yield Compatibility("kernel", min=str(least))


def _attributes(each: _CompspecSet) -> Iterator[tuple[str, str]]:
    for name, value in {**each.annotations, **each.attributes}.items():
        yield f"{each.name}.{name}", value.strip()[:256]


def _compspec_need(name: str, value: str) -> Compatibility | None:
    """`name`: of the set and of the attribute together, since the border between them has moved over time."""
    if name == "org.supercontainers.mpi.implementation" and value.lower() in _MPI_NAMES:
        return Compatibility("mpi-implementation", equals=_MPI_NAMES[value.lower()])
    if name in _COMPSPEC_VERSIONS and value[:1].isdecimal():
        return Compatibility(_COMPSPEC_VERSIONS[name], min=value)
    if name == "org.supercontainers.hardware.gpu.available" and value.lower() in ("yes", "true"):
        return Compatibility("gpu-driver", min="0")  # a node without a GPU tells no driver
    if name == "io.archspec.cpu.target" and value in _ARCHITECTURES:
        return Compatibility("architecture", equals=architecture_of(value))
    return None
