"""Amounts as people write them (500m, 16GiB, 90m, 1:30:00), read exactly."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from switchyard.errors import ImpossibleValue

NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})(?:[eE]([+-]?[0-9]{1,2}))?"
AMOUNT = re.compile(NUMBER + r"([A-Za-z]{0,3})\Z")
EXPONENT_AND_UNIT = re.compile(r"[0-9.][eE][+-]?[0-9]+[A-Za-z]")  # in Kubernetes one excludes the other
SUFFIX: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "K": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
BYTES_MAX = 2**63 - 1  # what the database's integers hold
AMOUNT_MAX = Fraction(BYTES_MAX)
UNITS = r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s?)?"
HOURS = r"(?:([0-9]{1,4})-)?([0-9]{1,6}):([0-5]?[0-9]):([0-5]?[0-9])"
DURATION = re.compile(UNITS + r"\Z")
CLOCK = re.compile(HOURS + r"\Z")
# A duration with more digits than are read, to tell one that is too long from a text that is none.
TOO_LONG = re.compile(
    r"(?:([0-9]{1,40})d)?(?:([0-9]{1,40})h)?(?:([0-9]{1,40})m)?(?:([0-9]{1,40})s?)?\Z"
    r"|(?:([0-9]{1,40})-)?([0-9]{1,40}):([0-5]?[0-9]):([0-5]?[0-9])\Z"
)
DURATION_S_MAX = 10 * 366 * 86_400
# What a schema says of the texts: made of the very parts that read them. A duration has a digit that is not zero.
AMOUNT_ABOVE_ZERO_PATTERN = f"^(?=[0-9.]*[1-9]){NUMBER}({'|'.join(SUFFIX)})B?(?!\\n)$"
AMOUNT_PATTERN = f"^{NUMBER}({'|'.join(SUFFIX)})B?(?!\\n)$"
DURATION_PATTERN = f"^(?=[^\\n]*[1-9])({HOURS}|{UNITS})(?!\\n)$"
# The readers below check them, with better messages than a pattern's; the patterns are for who reads the schema.
AmountText = Annotated[str, Meta(max_length=40, extra_json_schema={"pattern": AMOUNT_PATTERN})]
DurationText = Annotated[str, Meta(max_length=40, extra_json_schema={"pattern": DURATION_PATTERN})]
Duration = Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | DurationText
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


@lru_cache(maxsize=4096, typed=True)  # typed: True is not 1.0
def parse_amount(text: str | int | float) -> Fraction:
    """An exact amount. Bytes may be written with a B (GiB, MB); cores with m (500m)."""
    if isinstance(text, bool):
        raise ValueError("an amount is a number such as 4, 500m or 16GiB")
    value = _float_amount(text) if isinstance(text, float) else _written_amount(str(text))
    if value > AMOUNT_MAX:
        raise ImpossibleValue(f"{str(text)[:40]!r} is absurdly large; the most is 2^63 - 1")
    return value


def _float_amount(number: float) -> Fraction:
    """Exactly as the number is shown: 0.1 is a tenth. JSON has no limit on digits, so there is none here."""
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{number} is not an amount; write a number such as 4, 0.5, 500m or 16GiB")
    return Fraction(repr(number))


def _written_amount(text: str) -> Fraction:
    match = AMOUNT.match(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not an amount; write a number such as 4, 0.5, 500m or 16GiB")
    number, exponent, suffix = match.groups()
    suffix = suffix[:-1] if suffix.endswith("B") else suffix
    if suffix not in SUFFIX:
        raise ValueError(f"{text[:40]!r} has an unknown unit; known are m, k, M, G, T, P, E and Ki … Ei")
    return Fraction(number) * Fraction(10) ** int(exponent or 0) * SUFFIX[suffix]


@lru_cache(maxsize=4096, typed=True)
def is_amount_above(amount: str | int | float, limit: str | int | float) -> bool:
    """Whether one amount is above another: asked of the same few at each submit, and fractions compare slowly."""
    return parse_amount(amount) > parse_amount(limit)


def parse_kubernetes(text: str | int | float) -> Fraction:
    """An exact amount in Kubernetes' own form, which has no B: 500m, 2, 450Mi, 1e3."""
    value = parse_amount(text)
    if isinstance(text, str) and (text.endswith(("B", "K")) or EXPONENT_AND_UNIT.search(text)):
        raise ValueError(f"{text[:40]!r} is not a quantity of Kubernetes; write 500m, 2, 450Mi or 16Gi")
    return value


def parse_bytes(text: str | int | float) -> int:
    """Whole bytes, rounded up."""
    return ceil_fraction(parse_amount(text))


def ceil_fraction(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


@lru_cache(maxsize=4096, typed=True)  # typed: True is not 1.0
def parse_duration_s(text: str | int | float) -> int:
    """Seconds from 90, '90s', '1h30m', '2d', '1:30:00' or '1-12:00:00'."""
    if isinstance(text, bool):
        raise ValueError("a duration is written as 90, 15m, 1h30m, 2d or 1:30:00")
    seconds = _seconds(str(text))
    if seconds is None and (written := TOO_LONG.match(str(text))) and _is_too_long(written):
        raise ValueError(f"{str(text)[:40]!r} is over ten years")
    if seconds is None or seconds <= 0:
        raise ValueError(f"{str(text)[:40]!r} is not a duration; write 90, 15m, 1h30m, 2d or 1:30:00")
    if seconds > DURATION_S_MAX:
        raise ImpossibleValue(f"{str(text)[:40]!r} is over ten years")
    return seconds


def _seconds(text: str) -> int | None:
    if clock := CLOCK.match(text):
        days, hours, minutes, secs = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + secs
    if text and (units := DURATION.match(text)):
        days, hours, minutes, secs = (int(part or 0) for part in units.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + secs
    return None


def _is_too_long(written: re.Match[str]) -> bool:
    """Whether a duration has more digits than are read because it is long, and not because of zeros in front."""
    parts = written.groups("")
    days, hours, minutes, secs = (int(parts[at] or parts[at + 4] or 0) for at in range(4))  # of one form or the other
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs > DURATION_S_MAX


def show_bytes(value: int) -> str:
    """The shortest exact binary form, else one decimal: 16GiB, 1.5GiB, 812B."""
    for suffix, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value // size}{suffix}" if value % size == 0 else f"{value / size:.1f}{suffix}"
    return f"{value}B"


def show_duration(seconds: int) -> str:
    """A duration as people write it: 10s, 1m30s, 2h."""
    parts = [(seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
