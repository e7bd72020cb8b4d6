"""Reads the trackable resources (TRES) of a job: `cpu=4,mem=8G,node=1,billing=4,gres/gpu=2,gres/gpu:a100=2`. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from switchyard.model.cluster.allocation import GivenResources, shown_types

COUNT_MAX = 2**31 - 1
_SIZE = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}  # no unit: megabytes
_MEMORY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGTP]?)\Z")
_GPU, _GPU_OF_TYPE = "gres/gpu", "gres/gpu:"


@lru_cache(maxsize=4096)  # most jobs of a site have one of a few texts
def read_tres(text: str) -> GivenResources | None:
    """None: it tells nothing. Unreadable amounts are left out."""
    amounts = dict(part.split("=", 1) for part in text.strip().split(",") if "=" in part)
    cores, gpus = _count(amounts.get("cpu", "")), _count(amounts.get(_GPU, ""))
    if cores is None and gpus is None:
        return None
    memory = _MEMORY.match(amounts.get("mem", ""))
    types = {key.removeprefix(_GPU_OF_TYPE): _count(value) for key, value in amounts.items() if _GPU_OF_TYPE in key}
    return GivenResources(
        cores=cores,
        memory_bytes=int(float(memory[1]) * _SIZE[memory[2]]) if memory else None,
        gpus=gpus,
        gpu_types=shown_types({type_ for type_, count in types.items() if count}),
    )


def _count(text: str) -> int | None:
    return min(int(text), COUNT_MAX) if text.isascii() and text.isdigit() and len(text) < 12 else None
