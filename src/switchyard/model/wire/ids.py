"""Ids are ULIDs: 26 characters, sorted by the time they were made. Time and randomness are given in."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
RANDOM_BITS = 80
ID_PATTERN = rf"^[{ALPHABET}]{{{LENGTH}}}(?!\n)$"
JobIdText = Annotated[str, Meta(pattern=ID_PATTERN, min_length=LENGTH, max_length=LENGTH)]
_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]


def make_id(at_us: int, entropy: int) -> str:
    """A ULID for this time (µs) and these 80 random bits."""
    value = ((at_us // 1000) << RANDOM_BITS) | (entropy & ((1 << RANDOM_BITS) - 1))
    pairs = _PAIRS
    return "".join([pairs[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def read_id(text: str) -> tuple[int, int]:
    """The time (µs, to the millisecond) and the random bits of an id."""
    value = 0
    for char in text:
        value = value * 32 + ALPHABET.index(char)
    return (value >> RANDOM_BITS) * 1000, value & ((1 << RANDOM_BITS) - 1)


def is_id(text: str) -> bool:
    return len(text) == LENGTH and all(char in ALPHABET for char in text)
