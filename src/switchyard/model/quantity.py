"""Amounts as people write them (500m, 16GiB, 90m, 1:30:00), read exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

AMOUNT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})(?:[eE]([+-]?[0-9]{1,2}))?([A-Za-z]{0,3})\Z")
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
AMOUNT_MAX = Fraction(2**63 - 1)  # what the database's integers hold
DURATION = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s?)?\Z")
CLOCK = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,6}):([0-5]?[0-9]):([0-5]?[0-9])\Z")
DURATION_S_MAX = 10 * 366 * 86_400


@lru_cache(maxsize=4096, typed=True)  # typed: True is not 1.0
def parse_amount(text: str | int | float) -> Fraction:
    """An exact amount. Bytes may be written with a B (GiB, MB); cores with m (500m)."""
    if isinstance(text, bool):
        raise ValueError("an amount is a number such as 4, 500m or 16GiB")
    found = AMOUNT.match(str(text))
    if not found:
        raise ValueError(f"{str(text)[:40]!r} is not an amount; write a number such as 4, 0.5, 500m or 16GiB")
    number, exponent, suffix = found.groups()
    suffix = suffix[:-1] if suffix.endswith("B") else suffix
    if suffix not in SUFFIX:
        raise ValueError(f"{str(text)[:40]!r} has an unknown unit; known are m, k, M, G, T, P, E and Ki … Ei")
    value = Fraction(number) * Fraction(10) ** int(exponent or 0) * SUFFIX[suffix]
    if value > AMOUNT_MAX:
        raise ValueError(f"{str(text)[:40]!r} is absurdly large; the most is 2^63 - 1")
    return value


@lru_cache(maxsize=4096, typed=True)
def is_more(amount: str | int | float, most: str | int | float) -> bool:
    """Whether one amount is above another: asked of the same few at each submit, and fractions compare slowly."""
    return parse_amount(amount) > parse_amount(most)


def parse_kubernetes(text: str | int | float) -> Fraction:
    """An exact amount in Kubernetes' own form, which has no B: 500m, 2, 450Mi, 1e3."""
    value = parse_amount(text)
    if isinstance(text, str) and (text.endswith(("B", "K")) or EXPONENT_AND_UNIT.search(text)):
        raise ValueError(f"{text[:40]!r} is not a quantity of Kubernetes; write 500m, 2, 450Mi or 16Gi")
    return value


def parse_bytes(text: str | int | float) -> int:
    """Whole bytes, rounded up."""
    return ceil(parse_amount(text))


def ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


@lru_cache(maxsize=4096, typed=True)  # typed: True is not 1.0
def parse_duration_s(text: str | int | float) -> int:
    """Seconds from 90, '90s', '1h30m', '2d', '1:30:00' or '1-12:00:00'."""
    if isinstance(text, bool):
        raise ValueError("a duration is written as 90, 15m, 1h30m, 2d or 1:30:00")
    seconds = _seconds(str(text))
    if seconds is None or seconds <= 0:
        raise ValueError(f"{str(text)[:40]!r} is not a duration; write 90, 15m, 1h30m, 2d or 1:30:00")
    if seconds > DURATION_S_MAX:
        raise ValueError(f"{str(text)[:40]!r} is over ten years")
    return seconds


def _seconds(text: str) -> int | None:
    if clock := CLOCK.match(text):
        days, hours, minutes, secs = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + secs
    if text and (units := DURATION.match(text)):
        days, hours, minutes, secs = (int(part or 0) for part in units.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + secs
    return None


def show_bytes(value: int) -> str:
    """The shortest exact binary form, else one decimal: 16GiB, 1.5GiB, 812B."""
    for suffix, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value // size}{suffix}" if value % size == 0 else f"{value / size:.1f}{suffix}"
    return f"{value}B"


def show_amount(value: Fraction) -> str:
    """4, or 0.5: as people write cores."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"
