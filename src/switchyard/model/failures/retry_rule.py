"""What a retry policy says of one kind of failure: how often, where, and with how much more memory and time. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.errors import ImpossibleValue
from switchyard.model.jobspec.quantity import (
    AMOUNT_ABOVE_ZERO_PATTERN,
    AmountText,
    Duration,
    ceil_fraction,
    parse_amount,
    parse_bytes,
    parse_duration_s,
)

LIMIT_MAX = 100
FACTOR_MAX = 10
FACTOR = re.compile(r"x([0-9]{1,2}(?:\.[0-9]{1,3})?)\Z")
FACTOR_PATTERN = r"^x[0-9]{1,2}(\.[0-9]{1,3})?(?!\n)$"
FactorText = Annotated[str, Meta(max_length=16, extra_json_schema={"pattern": FACTOR_PATTERN})]
Memory = (
    Annotated[int, Meta(ge=1, le=2**63 - 1)]
    | Annotated[AmountText, Meta(extra_json_schema={"pattern": AMOUNT_ABOVE_ZERO_PATTERN})]
)


class RetryRule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Up to `limit` retries after failures of one kind; 0: none. Without it, as many as the policy's own `limit`.

    `elsewhere`: on other clusters, if any can run it. `memory`, `time`: each retry asks for so many times as much as
    the attempt before it, `x2` or `x1.5`, up to `memory_max` and `time_max`.
    """

    limit: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | None = None
    elsewhere: bool = False
    memory: FactorText | None = None
    memory_max: Memory | None = None
    time: FactorText | None = None
    time_max: Duration | None = None

    def __post_init__(self) -> None:
        for name, factor, most in (("memory", self.memory, self.memory_max), ("time", self.time, self.time_max)):
            if factor is not None:
                read_factor(factor)
            elif most is not None:
                raise ImpossibleValue(f"{name}_max bounds a raise, and there is none: give `{name}`, too, as in x2")
        if self.memory_max is not None:
            parse_bytes(self.memory_max)
        if self.time_max is not None:
            parse_duration_s(self.time_max)

    @property
    def is_raising(self) -> bool:
        return self.memory is not None or self.time is not None

    def without_raise(self, *, memory: bool = True, time: bool = True) -> RetryRule:
        """Return the rule without the raise of memory, of time, or of both."""
        return RetryRule(
            self.limit,
            self.elsewhere,
            memory=None if memory else self.memory,
            memory_max=None if memory else self.memory_max,
            time=None if time else self.time,
            time_max=None if time else self.time_max,
        )


def read_factor(text: str) -> Fraction:
    """Parse `x2` or `x1.5`: above 1 and at most FACTOR_MAX."""
    match = FACTOR.match(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a factor; write it as in x2 or x1.5")
    factor = Fraction(match[1])
    if not 1 < factor <= FACTOR_MAX:
        raise ImpossibleValue(f"the factor {text} is not above x1 and at most x{FACTOR_MAX}; write it as in x2 or x1.5")
    return factor


def raised_amount(text: str | int | float, factor: Fraction) -> int | str:
    """So many times an amount of bytes, in such units as the text if that is exact: 2 times 1.5GiB is 3GiB."""
    size = ceil_fraction(parse_amount(text) * factor)
    unit = re.search(r"[A-Za-z]*\Z", str(text))
    return _in_units(size, unit[0][1:]) if unit is not None and unit[0][:1].isupper() else size


def _in_units(size: int, ending: str) -> int | str:
    """Write bytes in the largest unit with this ending (`i`, `iB`, `B` or none) that is exact, else as a number."""
    for letter in "EPTGMK":
        count, rest = divmod(size, int(parse_amount(f"1{letter}{ending}")))
        if count and not rest:
            return f"{count}{letter}{ending}"
    return size
