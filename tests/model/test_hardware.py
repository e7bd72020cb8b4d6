"""Names of hardware: many spellings mean one type."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.hardware import Hardware, SiteNames, read_hardware, types_of_vertex
from switchyard.model.jobspec.devices import Device, read_device


@pytest.mark.parametrize(
    ("spelling", "name", "memory_gb"),
    [
        ("h100", "h100", 0),
        ("NVIDIA-H100-80GB-HBM3", "h100", 80),
        ("nvidia_h100_pcie", "h100", 0),
        ("NVIDIA H100 NVL", "h100", 0),
        ("Tesla V100-SXM2-32GB", "v100", 32),
        ("nvidia-tesla-t4", "t4", 0),
        ("nvidia-a100-80gb", "a100", 80),
        ("NVIDIA GeForce RTX 4090", "rtx4090", 0),
        ("NVIDIA RTX A6000", "a6000", 0),
        ("AMD_Instinct_MI300X_OAM", "mi300x", 0),
        ("tpu-v5-lite-podslice", "v5e", 0),
        ("A10G", "a10g", 0),
        ("NVIDIA GH200 480GB", "gh200", 0),  # 480 GB are the processor's
        ("tesla", "tesla", 0),  # a vendor's word alone is a name, too
    ],
)
def test_a_name_is_read_without_vendor_form_and_memory(spelling: str, name: str, memory_gb: int) -> None:
    assert read_hardware(spelling) == Hardware(name, memory_gb * 1000)


@pytest.mark.parametrize("spelling", ["NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a100_1g.5gb", "a100-mig-1g.5gb"])
def test_a_slice_is_a_type_of_its_own_with_its_own_memory(spelling: str) -> None:
    assert read_hardware(spelling) == Hardware("a100-mig-1g.5gb", 5000)


def test_a_shared_device_is_not_a_whole_one() -> None:
    assert read_hardware("NVIDIA-A100-SXM4-40GB-SHARED").name == "a100-shared"


def test_a_site_adds_names_which_are_found_by_the_same_rule() -> None:
    names = SiteNames({"Big Card": "h100-80gb"})
    assert [names.common(text) for text in ("Big Card", "nvidia_big_card", "a100")] == [
        "h100-80gb",
        "h100-80gb",
        "a100",
    ]


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"type": "a100"}, [Hardware("a100", 40_000)]),  # no A100 has less
        ({"type": "a100", "memory": 85_520_809_984}, [Hardware("a100", 85_520)]),
        ({"product": "NVIDIA-A100-SXM4-80GB"}, [Hardware("a100", 80_000)]),
        ({"type": "strange-1"}, [Hardware("strange1", 0)]),
        ({"mi50": True, "gfx906": ""}, [Hardware("mi50", 0), Hardware("gfx906", 0)]),  # as Flux has properties
        ({"index": 3, "fast": False}, []),
    ],
)
def test_the_properties_of_a_vertex_tell_its_types(properties: dict, told: list[Hardware]) -> None:
    assert list(types_of_vertex(properties)) == told


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("nic", Device("nic", 1)),
        ("nic:2", Device("nic", 2)),
        ("fpga:u280", Device("fpga", 1, "u280", 0, "u280")),
        ("gpu:nvidia_a100_80gb:4", Device("gpu", 4, "a100", 80_000, "nvidia_a100_80gb")),
    ],
)
def test_a_device_is_a_kind_and_perhaps_a_type_and_a_count(text: str, device: Device) -> None:
    assert read_device(text) == device
