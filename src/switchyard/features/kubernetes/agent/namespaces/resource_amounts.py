"""Amounts of resources as Kubernetes writes them, as whole numbers: CPU in thousandths of a core, the rest in units.

What a node has is rounded down and what a pod asks for is rounded up, so a pod that fits by these numbers fits. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from switchyard.model.job.job import COUNT_MAX
from switchyard.model.jobspec.quantity import AMOUNT_MAX, ceil_fraction, parse_kubernetes, show_bytes

CPU = "cpu"
MEMORY = "memory"
STORAGE = "ephemeral-storage"
PODS = "pods"
MILLI = 1000
AMOUNT_INT_MAX = int(AMOUNT_MAX)
# No node has more: a larger number comes from a broken node, and the sums over all nodes must stay within 64 bits.
NODE_MILLICORES_MAX = COUNT_MAX * MILLI
NODE_AMOUNT_MAX = 2**50
_MANY_DIGITS = re.compile(r"[0-9]{18,400}(?:\.[0-9]*)?(?:[eE][+]?[0-9]{1,4}|[kMGTPE]i?)?\Z")

WrittenAmounts = Mapping[str, str | int | float]
Amounts = dict[str, int]  # resource → amount


def allocatable_amounts(written: WrittenAmounts) -> Amounts:
    """What a node has. A resource whose quantity cannot be read is left out: the node then has none of it."""
    amounts = {name: read_amount(name, text, is_asked=False) for name, text in written.items()}
    return {name: min(amount, _node_max(name)) for name, amount in amounts.items() if amount}


def asked_amounts(written: WrittenAmounts) -> Amounts:
    """What a container asks for. The API server refuses quantities that are none, so one that is none counts as 0."""
    amounts = {name: read_amount(name, text, is_asked=True) for name, text in written.items()}
    return {name: amount for name, amount in amounts.items() if amount}


def add_amounts(*several: Mapping[str, int]) -> Amounts:
    total: Amounts = {}
    for amounts in several:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def largest_amounts(several: Iterable[Mapping[str, int]]) -> Amounts:
    """The largest amount of each resource."""
    largest: Amounts = {}
    for amounts in several:
        for name, amount in amounts.items():
            largest[name] = max(amount, largest.get(name, 0))
    return largest


def remaining_amounts(has: Mapping[str, int], used: Mapping[str, int]) -> Amounts:
    """What is left, at least 0: pods may ask for more than a node has after it became smaller."""
    return {name: max(0, amount - used.get(name, 0)) for name, amount in has.items()}


def short_resources(asked: Mapping[str, int], has: Mapping[str, int]) -> list[str]:
    """The resources of which there is too little, in a fixed order."""
    return sorted(name for name, amount in asked.items() if amount > has.get(name, 0))


@lru_cache(maxsize=16_384, typed=True)
def read_amount(name: str, text: str | int | float, *, is_asked: bool) -> int:
    """One quantity as a whole number within 0 and 2^63 - 1; 0 if it is none."""
    value = _fraction(text) * (MILLI if name == CPU else 1)
    whole = ceil_fraction(value) if is_asked else value.numerator // value.denominator
    return min(whole, AMOUNT_INT_MAX)


def _node_max(name: str) -> int:
    return NODE_MILLICORES_MAX if name == CPU else NODE_AMOUNT_MAX


def _fraction(text: str | int | float) -> Fraction:
    try:
        return parse_kubernetes(text)
    except ValueError:
        is_huge = isinstance(text, str | int) and not isinstance(text, bool) and bool(_MANY_DIGITS.match(str(text)))
        return AMOUNT_MAX if is_huge or _is_over_the_most(text) else Fraction(0)


def _is_over_the_most(text: str | int | float) -> bool:
    """Whether it is refused only because it is so large: `10E`, `1e30`."""
    written = re.match(r"([0-9]{1,18}(?:\.[0-9]{1,12})?)(?:[eE][+]?[0-9]{1,4}|[TPE]i?)\Z", str(text))
    return written is not None and Fraction(written[1]) > 0


def show_amount(name: str, amount: int) -> str:
    """`1.5 cpu`, `16GiB memory`, `2 nvidia.com/gpu`."""
    if name == CPU:
        return f"{amount / MILLI:g} cpu"
    if name in (MEMORY, STORAGE) or name.startswith("hugepages-"):
        return f"{show_bytes(amount)} {name}"
    return f"{amount} {name}"
