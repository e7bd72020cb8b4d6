"""Names of hardware: which spellings mean the same type of GPU, FPGA or TPU, and how much memory a name tells. Pure.

Batch systems, device plugins and `nvidia-smi` spell one type in many ways. A name is compared without its vendor, its
form factor and its memory: `NVIDIA-H100-80GB-HBM3`, `nvidia_h100_pcie` and `h100` are all `h100`. Slices (MIG) and
shared devices keep a name of their own, since they are less than the whole device. A site adds names (`hardware_names`
of its site file).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, NamedTuple

from msgspec import Meta

from switchyard.model.jobspec.quantity import parse_bytes

MB = 10**6  # makers count so: a card of 80 GB
# The subsystem of a requirement that asks the vertex itself: its type and its memory.
OWN_SUBSYSTEM, TYPE_FIELD, MEMORY_FIELD = "containment", "type", "memory_mb"
TYPE_PROPERTIES = ("type", "model", "product")  # of a vertex, whose value is its type
MEMORY_PROPERTY = "memory"
GPU = "gpu"
NAMES_MAX = 1000
SPELLING_CHARS_MAX = 256
Spelling = Annotated[str, Meta(min_length=1, max_length=SPELLING_CHARS_MAX, pattern=r"^[^\u0000-\u001f]*$")]
HardwareNames = Annotated[dict[Spelling, Spelling], Meta(max_length=NAMES_MAX)]

_MAKERS = frozenset(
    {"nvidia", "amd", "intel", "google", "xilinx", "corporation", "geforce", "tesla", "radeon", "instinct", "quadro"}
    | {"gpu", "tpu", "fpga", "graphics", "generation", "accelerator", "device", "podslice", "slice"}
)
_FORM = re.compile(r"pcie|sxm[0-9]?|nvl|oam|hbm[0-9]?e?|gddr[0-9]x?\Z")
_MEMORY = re.compile(r"([0-9]{1,5})gi?b?\Z")
_SLICE = re.compile(r"([0-9]g\.([0-9]{1,4})gb)(?:[.+](\w+))*\Z")
# Joined words that mean another name.
_ALIASES = {"rtxa6000": "a6000", "rtxa5000": "a5000", "rtxa4000": "a4000", "v5lite": "v5e", "v5litepod": "v5e"}
# The memory in these names is the processor's.
_OTHER_MEMORY = frozenset({"gh200", "gb200", "gb300"})
# The least memory of cards with this name, in GB: many sites tell only the name.
_LEAST_MEMORY = (
    {"v100": 16, "p100": 12, "t4": 16, "a10": 24, "a10g": 24, "a30": 24, "a40": 48, "a100": 40, "a6000": 48}
    | {"l4": 24, "l40": 48, "l40s": 48, "h100": 80, "h200": 141, "gh200": 96, "b200": 180, "b300": 270}
    | {"rtx3090": 24, "rtx4090": 24, "rtx5090": 32, "mi100": 32, "mi210": 64, "mi250": 128, "mi250x": 128}
    | {"mi300a": 128, "mi300x": 192, "mi325x": 256}
)


class Hardware(NamedTuple):
    """A type by its common name, and the memory that the name tells; 0: it tells none."""

    name: str
    memory_mb: int = 0


@lru_cache(maxsize=4096)
def read_hardware(text: str) -> Hardware:
    """`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb` is `a100-mig-1g.5gb` with 5 GB."""
    words = [word for word in re.split(r"[\s_/()-]+", text.lower()) if word]
    kept: list[str] = []
    marks: list[str] = []
    memory_gb = slice_gb = 0
    for word in words:
        if part := _SLICE.match(word):
            marks.append(f"mig-{word.replace('+', '.')}")
            slice_gb = int(part[2])
        elif word == "shared":
            marks.append(word)
        elif part := _MEMORY.match(word):
            memory_gb = int(part[1])
        elif word not in _MAKERS and word != "mig" and not _FORM.fullmatch(word):
            kept.append(word)
    name = "".join(kept)
    if not name and not marks:
        return Hardware("-".join(words))
    name = _ALIASES.get(name, name)
    memory_mb = (slice_gb or (0 if name in _OTHER_MEMORY else memory_gb)) * 1000
    return Hardware("-".join([*([name] if name else []), *marks]), memory_mb)


class SiteNames:
    """The names of a site, over the common ones. What it maps a spelling to is read by the same rule."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = {key: value for name, value in names.items() for key in (name, read_hardware(name).name)}

    def hardware(self, spelling: str) -> Hardware:
        """The type that the cluster means by this spelling, with the memory that it is known to have."""
        return next(iter(types_of_vertex({"type": self.common(spelling)})), Hardware(""))

    def common(self, spelling: str) -> str:
        """The spelling itself, unless the site says that it means another."""
        return self._names.get(spelling) or self._names.get(read_hardware(spelling).name, spelling)


COMMON_NAMES = SiteNames({})  # of a site that adds none


def types_of_vertex(properties: Mapping[str, object]) -> Iterable[Hardware]:
    """The types that the properties of a vertex tell, by value (`type: a100`) or by name, as Flux has them (`mi50`)."""
    memory_mb = _memory_mb(properties.get(MEMORY_PROPERTY))
    for key, value in properties.items():
        if key in TYPE_PROPERTIES and isinstance(value, str) and value:
            told = read_hardware(value)
        elif value is True or value == "":
            told = read_hardware(key)
        else:
            continue
        yield Hardware(told.name, max(memory_mb or told.memory_mb, 1000 * _LEAST_MEMORY.get(told.name, 0)))


def is_known(name: str) -> bool:
    """Whether a word names a GPU, wherever it stands: as a feature of a node, or as its property."""
    return read_hardware(name).name in _LEAST_MEMORY


def _memory_mb(value: object) -> int:
    """Of a property; 0: it tells none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return 0
    try:
        return parse_bytes(value) // MB
    except ValueError:
        return 0
