"""What artifacts of others say that an image needs, in the words of our nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from switchyard.errors import Malformed
from switchyard.model.images.compatibility_forms import (
    COMPSPEC_TYPE,
    DOCUMENT_TYPE,
    NFD_DOCUMENT_TYPE,
    read_document,
)
from switchyard.model.job.image_compatibility import Compatibility

NVIDIA = Compatibility("gpu-vendor", equals="nvidia")
AMD = Compatibility("gpu-vendor", equals="amd")
KERNEL_5 = Compatibility("kernel", min="5")


def term(feature: str, **expressions: Any) -> dict[str, Any]:
    return {
        "feature": feature,
        "matchExpressions": {name.replace("_", "-"): each for name, each in expressions.items()},
    }


def exists(name: str) -> dict[str, Any]:
    return term("kernel.loadedmodule", **{name: {"op": "Exists"}})


def major(op: str, *values: str) -> dict[str, Any]:
    return term("kernel.version", major={"op": op, "value": list(values)})


def of_vendor(vendor: str, *classes: str) -> dict[str, Any]:
    return term("pci.device", vendor={"op": "In", "value": [vendor]}, **{"class": {"op": "In", "value": list(classes)}})


def nfd(*sets: list[Any]) -> list[Compatibility]:
    document = {"version": "v1alpha1", "compatibilities": [{"rules": rules, "weight": 5} for rules in sets]}
    return read_document(NFD_DOCUMENT_TYPE, json.dumps(document).encode(), where="x")


@pytest.mark.parametrize(
    ("terms", "needs"),
    [
        ([exists("nvidia")], [NVIDIA]),
        ([exists("amdgpu")], [AMD]),
        ([exists("vfio-pci")], []),  # no node tells it
        ([term("kernel.loadedmodule", nvidia={"op": "DoesNotExist"})], []),
        ([major("Gt", "4")], [KERNEL_5]),
        ([major("In", "5")], [KERNEL_5]),
        ([major("In", "6", "5")], [KERNEL_5]),
        ([major("GtLt", "4", "7")], [KERNEL_5]),
        ([major("Lt", "6")], []),
        ([major("Gt", "x")], []),
        ([major("Gt")], []),
        (
            [term("kernel.version", full={"op": "In", "value": ["6.1.0-18-amd64"]})],
            [Compatibility("kernel-release", equals="6.1.0-18-amd64")],
        ),
        ([of_vendor("10de", "0302")], [NVIDIA]),
        ([of_vendor("1002", "0300", "1200")], [AMD]),
        ([of_vendor("10de", "0200")], []),  # a network card
        ([of_vendor("8086", "0300")], []),
        ([term("cpu.model", vendor_id={"op": "In", "value": ["Intel"]})], []),
        ([{"feature": "cpu.cpuid"}], []),
    ],
)
def test_features_of_nfd_that_nodes_tell_are_needs(terms: list[Any], needs: list[Compatibility]) -> None:
    assert nfd([{"name": "r", "matchFeatures": terms}]) == needs


def test_of_alternatives_only_what_all_need_is_a_need() -> None:
    either = [
        {"matchFeatures": [exists("nvidia"), major("Gt", "4")]},
        {"matchFeatures": [exists("amdgpu"), major("Gt", "4")]},
    ]
    assert nfd([{"matchAny": either}]) == [KERNEL_5]
    assert nfd([{"matchAny": either[:1]}]) == [NVIDIA, KERNEL_5]
    one, other = [{"matchFeatures": [exists("nvidia")]}], [{"matchFeatures": [exists("nvidia"), major("Gt", "4")]}]
    assert nfd(one, other) == [NVIDIA]
    assert nfd() == []


@pytest.mark.parametrize(
    ("name", "attributes", "needs"),
    [
        (
            "org.supercontainers",
            {"mpi.implementation": "OpenMPI"},
            [Compatibility("mpi-implementation", equals="openmpi")],
        ),
        ("org.supercontainers.mpi", {"version": "4.1.1"}, [Compatibility("mpi", min="4.1.1")]),
        ("org.supercontainers", {"mpi.implementation": "unknown", "os.vendor": "rocky"}, []),
        ("org.supercontainers", {"hardware.gpu.available": "yes"}, [Compatibility("gpu-driver", min="0")]),
        ("org.supercontainers", {"hardware.gpu.available": "no"}, []),
        ("io.archspec", {"cpu.target": "amd64"}, [Compatibility("architecture", equals="x86_64")]),
        ("io.archspec.cpu", {"target": "skylake"}, []),
        ("org.example", {"mpi.version": "4"}, []),
    ],
)
@pytest.mark.parametrize("key", ["attributes", "annotations"])
def test_attributes_of_compspec_that_nodes_tell_are_needs(
    name: str, attributes: dict[str, str], needs: list[Compatibility], key: str
) -> None:
    document = {"version": "0.0.0", "compatibilities": [{"name": name, "version": "0.0.0", key: attributes}]}
    assert read_document(COMPSPEC_TYPE, json.dumps(document).encode(), where="x") == needs


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DOCUMENT_TYPE, b"{"),
        (DOCUMENT_TYPE, b'{"compatibility": {}}'),
        (NFD_DOCUMENT_TYPE, b"{"),
        (NFD_DOCUMENT_TYPE, b""),
        (NFD_DOCUMENT_TYPE, b"version: v2\ncompatibilities: []"),
        (NFD_DOCUMENT_TYPE, b"version: v1alpha1\ncompatibilities: [{rules: {name: x}}]"),
        (NFD_DOCUMENT_TYPE, b"version: v1alpha1\nx: &a [*a]"),
        (NFD_DOCUMENT_TYPE, b"[" * 5000),
        (NFD_DOCUMENT_TYPE, json.dumps({"version": "v1alpha1", "compatibilities": [{"rules": []}] * 65}).encode()),
        (COMPSPEC_TYPE, b"[]"),
        (COMPSPEC_TYPE, b'{"compatibilities": [{"name": "x", "attributes": {"y": 1}}]}'),
    ],
)
def test_documents_that_break_their_form_are_refused(kind: str, body: bytes) -> None:
    with pytest.raises(Malformed, match=r"^the artifact"):
        read_document(kind, body, where="the artifact")
