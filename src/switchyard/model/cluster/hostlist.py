"""Host lists (RFC 29), `n[0-399],login1`: ordered runs of names, so that a million hosts are one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

HOSTS_MAX = 10_000_000
TEXT_CHARS_MAX = 64 * 2**20
_ENTRY = re.compile(r"([^\[\],\s]*)(?:\[([0-9,\-]+)\]([^\[\],\s]*))?\Z")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?\Z")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,12})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HostRange:
    """Neighbouring names: `prefix`, a number of at least `width` digits from `lo` to `hi`, `suffix`. No number: one."""

    prefix: str
    suffix: str = ""
    lo: int | None = None
    hi: int = 0
    width: int = 0

    def __len__(self) -> int:
        return 1 if self.lo is None else self.hi - self.lo + 1

    def __iter__(self) -> Iterator[str]:
        if self.lo is None:
            yield self.prefix
            return
        for number in range(self.lo, self.hi + 1):
            yield f"{self.prefix}{number:0{self.width}d}{self.suffix}"


def parse_hosts(text: str) -> list[HostRange]:
    """Read a host list, in its order; refuses what is empty, backwards or over ten million hosts."""
    if len(text) > TEXT_CHARS_MAX:
        raise ValueError(f"a host list of over {TEXT_CHARS_MAX} characters")
    runs: list[HostRange] = []
    total = 0
    for entry in _entries(text):
        for run in _runs_of(entry):
            total += len(run)
            if total > HOSTS_MAX:
                raise ValueError(f"a host list has at most {HOSTS_MAX:,} hosts")
            runs.append(run)
    return runs


def _entries(text: str) -> Iterator[str]:
    """Split at the commas that stand outside brackets."""
    start, inside = 0, False
    for at, char in enumerate(text):
        if char == "[":
            inside = True
        elif char == "]":
            inside = False
        elif char == "," and not inside:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _runs_of(entry: str) -> Iterator[HostRange]:
    match = _ENTRY.match(entry)
    if not entry or not match:
        raise ValueError(f"{entry[:60]!r} is not a host or a list such as n[0-3,7]")
    prefix, ranges, suffix = match.groups()
    if ranges is None:
        yield HostRange(prefix)
        return
    for part in ranges.split(","):
        bounds = _RANGE.match(part)
        if not bounds:
            raise ValueError(f"{part[:40]!r} in {entry[:60]!r} is not a range such as 0-3")
        lo, hi = bounds[1], bounds[2] or bounds[1]
        if int(hi) < int(lo):
            raise ValueError(f"the range {part[:40]!r} in {entry[:60]!r} is backwards")
        yield HostRange(prefix, suffix, int(lo), int(hi), len(lo) if lo.startswith("0") else 0)


def expand_hosts(runs: Iterable[HostRange]) -> list[str]:
    return [name for run in runs for name in run]


def compress_hosts(names: Iterable[str]) -> str:
    """Return the shortest list that keeps the order: names that count upwards become a range."""
    return format_hosts(_split_number(name) for name in names)


def format_hosts(runs: Iterable[HostRange]) -> str:
    """Return ranges as text; a range that continues the one before is joined with it."""
    merged: list[HostRange] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last and last.lo is not None and run.lo == last.hi + 1 and _is_same_family(last, run):
            merged[-1] = HostRange(last.prefix, last.suffix, last.lo, run.hi, last.width)
        else:
            merged.append(run)
    parts: list[str] = []
    at = 0
    while at < len(merged):
        run = merged[at]
        if run.lo is None:
            parts.append(run.prefix)
            at += 1
            continue
        family = [run]
        while at + len(family) < len(merged) and _is_bracket_mate(run, merged[at + len(family)]):
            family.append(merged[at + len(family)])
        at += len(family)
        parts.append(_format_family(family))
    return ",".join(parts)


def _split_number(name: str) -> HostRange:
    match = _NUMBERED.match(name)
    if not match or any(char in name for char in "[], "):
        return HostRange(name)
    digits = match[2]
    width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
    return HostRange(match[1], "", int(digits), int(digits), width)


def _is_same_family(first: HostRange, second: HostRange) -> bool:
    """Whether the second may go on where the first ended: 9 → 10 keeps no width, 09 → 10 has one of two."""
    if (first.prefix, first.suffix) != (second.prefix, second.suffix):
        return False
    return first.width == second.width or (first.width > 0 and len(str(second.lo)) == first.width)


def _is_bracket_mate(first: HostRange, second: HostRange) -> bool:
    return second.lo is not None and (first.prefix, first.suffix) == (second.prefix, second.suffix)


def _format_family(family: list[HostRange]) -> str:
    first = family[0]
    if len(family) == 1 and len(first) == 1:
        return next(iter(first))
    ranges = [
        f"{run.lo:0{run.width}d}" if len(run) == 1 else f"{run.lo:0{run.width}d}-{run.hi:0{run.width}d}"
        for run in family
    ]
    return f"{first.prefix}[{','.join(ranges)}]{first.suffix}"
