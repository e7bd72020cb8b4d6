"""A log: what an attempt wrote to one stream, as bytes at offsets, and what is kept of one that is too long. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

STREAMS = ("stdout", "stderr")
OUTPUT_BYTES_MAX = 4 * 2**20  # per stream of an attempt, unless the server's config says otherwise


class Stream(NamedTuple):
    """One stream of one attempt. Every attempt, also of an array's task, has a fence of its own."""

    job: str
    fence: int
    name: str


class LogPiece(NamedTuple):
    """Some bytes of a stream, at their true offset."""

    stream: Stream
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


ByteRange = tuple[int, int]  # from an offset up to, not including, another


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The kept part of a long stream: its beginning, and its end, which moves on. The middle is dropped."""

    bytes_max: int = OUTPUT_BYTES_MAX

    @property
    def half(self) -> int:
        return self.bytes_max // 2

    def tail_from(self, end: int) -> int:
        """Where the kept tail begins in a stream that reaches `end`."""
        return max(self.half, end - self.half)

    def kept(self, span: ByteRange, end: int) -> list[ByteRange]:
        """The parts of a span that are kept, head and tail apart."""
        lo, hi = span
        head, tail = (lo, min(hi, self.half)), (max(lo, self.tail_from(end)), hi)
        return [part for part in (head, tail) if part[0] < part[1]]


def uncovered_ranges(span: ByteRange, held: Iterable[ByteRange]) -> list[ByteRange]:
    """Return the parts of a span that none of these sorted ranges covers."""
    lo, hi = span
    uncovered: list[ByteRange] = []
    for begin, end in held:
        if end <= lo:
            continue
        if begin >= hi:
            break
        if begin > lo:
            uncovered.append((lo, begin))
        lo = end
    if lo < hi:
        uncovered.append((lo, hi))
    return uncovered


def split_range(span: ByteRange, size: int) -> list[ByteRange]:
    """Split a span into parts of at most `size`."""
    lo, hi = span
    return [(begin, min(hi, begin + size)) for begin in range(lo, hi, size)]
