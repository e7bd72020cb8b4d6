"""Which GPUs of this machine a job gets, by their index, and the variables that keep it to these. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from switchyard.agent.loop.need import spec_of
from switchyard.errors import Unavailable
from switchyard.model.cluster.hardware import GPU, Hardware
from switchyard.model.cluster.poll import Lease
from switchyard.model.jobspec.devices import devices_of, typed_resources


def choose_gpus(lease: Lease, gpus: Sequence[Hardware], taken: Collection[int]) -> tuple[int, ...]:
    """Raises Unavailable if other jobs have them. A job that names no type leaves rare types to those that do."""
    spec = spec_of(lease)
    asked = [device for device in devices_of(typed_resources(spec)) if device.kind == GPU]
    free = [index for index in range(len(gpus)) if index not in taken]
    chosen: list[int] = []
    for device in sorted(asked, key=lambda device: not device.type):
        count = device.count * spec.resources.tasks
        left = Counter(gpus[index].name for index in free)
        fitting = [index for index in free if device.is_met_by(gpus[index])]
        given = sorted(fitting, key=lambda index: (-left[gpus[index].name], index))[:count]
        if len(given) < count:
            raise Unavailable(
                f"Only {len(given)} of {count} {device.type or 'GPUs'} are free.",
                next_step="Wait until jobs there end.",
            )
        chosen += given
        free = [index for index in free if index not in given]
    return tuple(sorted(chosen))


def gpu_variables(chosen: Collection[int]) -> dict[str, str]:
    """CUDA counts by speed unless it is told to count as `nvidia-smi` does."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, chosen))} if chosen else {}


def free_types(gpus: Sequence[Hardware], taken: Collection[int]) -> dict[str, int]:
    """The free GPUs by type, if there are several types."""
    counts = {name: 0 for name, _ in gpus}
    for index, (name, _) in enumerate(gpus):
        counts[name] += index not in taken
    return counts if len(counts) > 1 else {}
