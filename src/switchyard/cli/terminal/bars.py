"""Bar charts for the terminal: segments by colour, fitted to the width. It knows no command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.cli.terminal.output import has_colour, paint, printable
from switchyard.cli.terminal.table import display_width, screen_width, shorten

WIDTH_DEFAULT = 80  # where there is no terminal
NAME_MAX = 32
BAR_MIN = 10


@dataclass(frozen=True, slots=True)
class BarSegment:
    """One part of a bar: its count, its colour, and the character that stands for it without colour."""

    count: int
    style: str
    sign: str


def print_bars(rows: Sequence[tuple[str, Sequence[BarSegment]]], *, indent: str = "  ") -> None:
    """Print a bar for each row, all on one scale, with its count and its share of the total."""
    for line in format_bars(rows, width=(screen_width() or WIDTH_DEFAULT) - len(indent), coloured=has_colour()):
        print(indent + line)


def format_bars(rows: Sequence[tuple[str, Sequence[BarSegment]]], *, width: int, coloured: bool) -> list[str]:
    totals = [sum(part.count for part in parts) for _, parts in rows]
    grand_total, most = sum(totals), max(totals, default=0)
    names = [shorten(printable(name), NAME_MAX) for name, _ in rows]
    name_width = max((display_width(name) for name in names), default=0)
    count_width = len(f"{most:,}")
    room = max(width - name_width - count_width - len("  100%") - 4, BAR_MIN)
    lines = []
    for name, (_, parts), total in zip(names, rows, totals, strict=True):
        length = max(round(room * total / most), 1) if total else 0  # a count above zero is always visible
        bar, space = _bar(parts, length, coloured=coloured), " " * (room - length)
        share = f"{100 * total / grand_total:.0f}%" if grand_total else ""
        lines.append(
            f"{name}{' ' * (name_width - display_width(name))}  {bar}{space}  {total:>{count_width},}  {share:>4}"
        )
    return lines


def _bar(parts: Sequence[BarSegment], length: int, *, coloured: bool) -> str:
    """Draw a bar with its segments in proportion."""
    total = sum(part.count for part in parts)
    drawn, done, text = 0, 0, ""
    for part in parts:
        done += part.count
        until = round(length * done / total) if total else 0
        size, drawn = until - drawn, until
        text += paint("█" * size, part.style) if coloured else part.sign * size
    return text
