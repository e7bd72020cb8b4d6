"""Units of sizes: what 64 GB of memory is in bytes. Pure."""

from __future__ import annotations

from functools import lru_cache

from switchyard.model.jobspec.quantity import parse_amount

# What these types mean when their unit is left out: Fluxion's graphs count them so.
DEFAULT_UNITS = {"memory": "GB", "storage": "GB"}


def bytes_of(kind: str, size: int, unit: str) -> int | None:
    """The size in bytes; none: it is a count, or its unit is not one of bytes."""
    factor = bytes_per_unit(unit or DEFAULT_UNITS.get(kind, ""))
    return None if factor is None else size * factor


@lru_cache(maxsize=256)
def bytes_per_unit(unit: str) -> int | None:
    """B, KB, MiB, G, … in bytes; none for what is no unit of bytes."""
    if not unit:
        return None
    if unit in ("B", "b", "byte", "bytes"):
        return 1
    try:
        value = parse_amount(f"1{unit}")
    except ValueError:
        return None
    return value.numerator if value.denominator == 1 and value > 1 else None
