"""The devices that one task of a job asks for, each by kind, type and memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from switchyard.model.cluster.hardware import GPU, MB, Hardware, read_hardware
from switchyard.model.job.job import JobSpec, Resources
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount


@dataclass(frozen=True, slots=True)
class Device:
    """`count` units of a kind, such as gpu. `type`: its common name; empty: any."""

    kind: str
    count: int
    type: str = ""
    memory_mb: int = 0  # of each, at least
    spelling: str = ""  # the type as the job writes it

    def is_met_by(self, hardware: Hardware) -> bool:
        return self.type in ("", hardware.name) and hardware.memory_mb >= self.memory_mb


def devices_of(resources: Resources) -> tuple[Device, ...]:
    """All devices of a task, GPUs first."""
    devices: list[Device] = []
    if gpus := resources.asked.gpus:
        memory_mb = 0 if resources.gpu_memory is None else ceil_fraction(parse_amount(resources.gpu_memory) / MB)
        devices.append(device_of(GPU, resources.gpu_type, gpus, memory_mb=memory_mb))
    return (*devices, *map(read_device, resources.devices))


def read_device(text: str) -> Device:
    """`nic`, `nic:2`, `fpga:u280` or `fpga:u280:2`: a type does not consist of digits alone."""
    kind, *rest = text.split(":")
    count = int(rest.pop()) if rest and rest[-1].isdigit() else 1
    return device_of(kind, rest[0] if rest else "", count)


def device_of(kind: str, spelling: str, count: int, *, memory_mb: int = 0) -> Device:
    """`spelling`: the type by any of its names. The memory that the name tells is asked for, too."""
    if not spelling:
        return Device(kind, count, memory_mb=memory_mb)
    told = read_hardware(spelling)
    return Device(kind, count, told.name, max(memory_mb, told.memory_mb), spelling)


def typed_resources(spec: JobSpec) -> Resources:
    """The job's resources, with the type that older requests give in `native`."""
    if spec.native is None or not spec.native.gpu_type or spec.resources.gpu_type or not spec.resources.asked.gpus:
        return spec.resources
    return replace(spec.resources, gpu_type=spec.native.gpu_type)
