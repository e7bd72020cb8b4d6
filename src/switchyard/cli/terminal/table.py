"""Formats tables, fields, ages and durations for people, fitted to the terminal. It knows no command."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct

from switchyard.cli.terminal.output import STATE_STYLES, emit, has_colour, paint, print_notice, printable
from switchyard.errors import EXIT_OK

GAP = "  "
FLEXIBLE_MIN = 8  # a shortened column keeps at least this many characters
ELLIPSIS = "…"

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True, slots=True)
class Column:
    """A column. On a narrow screen a flexible one is shortened, an optional one left out. `right`: aligned right."""

    title: str
    flexible: bool = False
    optional: bool = False
    right: bool = False


def print_list(
    items: Sequence[T],
    form: str | None,
    columns: Sequence[Column],
    row_of: Callable[[T, int], Sequence[str]],
    *,
    key: str = "name",
    if_empty: str = "",
) -> int:
    """Print items in the form of `-o`, else as a table. `row_of` gets an item and the present time.

    `if_empty`: a notice if there are no items. Return the exit code of success.
    """
    if not emit(items, form, key=key):
        now = now_us()
        print_table(columns, [row_of(item, now) for item in items])
        if if_empty and not items:
            print_notice(if_empty)
    return EXIT_OK


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, fitted to the terminal. Into a pipe nothing is shortened."""
    for line in format_table(columns, rows, width=screen_width(), coloured=has_colour()):
        print(line)


def format_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None, coloured: bool
) -> list[str]:
    """Return the lines of a table. `width` None: all columns at full width."""
    cells = [[printable(cell) for cell in row] for row in rows]
    natural = [
        max([display_width(head.title), *(display_width(row[i]) for row in cells)]) for i, head in enumerate(columns)
    ]
    shown = list(range(len(columns))) if width is None else _visible_columns(columns, cells, natural, width)
    heads = [columns[i] for i in shown]
    widths = _fit_widths([natural[i] for i in shown], heads, width)
    title = _format_line([head.title for head in heads], heads, widths, coloured=False)
    body = [_format_line([row[i] for i in shown], heads, widths, coloured=coloured) for row in cells]
    return [paint(title, "bold") if coloured else title, *body]


def _visible_columns(columns: Sequence[Column], cells: list[list[str]], natural: list[int], width: int) -> list[int]:
    """Return the columns to show. While shortened columns are still too wide, drop empty ones, then optional ones."""
    least = [
        min(natural[i], max(FLEXIBLE_MIN, display_width(head.title))) if head.flexible else natural[i]
        for i, head in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    empty = [i for i in shown[1:] if not any(row[i] for row in cells)]
    optional = [i for i in shown[1:] if columns[i].optional and i not in empty]
    for i in [*reversed(empty), *reversed(optional)]:
        if sum(least[k] for k in shown) + len(GAP) * (len(shown) - 1) > width:
            shown.remove(i)
    return shown


def _fit_widths(natural: list[int], heads: Sequence[Column], width: int | None) -> list[int]:
    """Shorten the widest flexible column, one character at a time, until the table fits."""
    widths = list(natural)
    over = sum(widths) + len(GAP) * (len(widths) - 1) - (width or sys.maxsize)
    while over > 0:
        flexible = [i for i, head in enumerate(heads) if head.flexible and widths[i] > FLEXIBLE_MIN]
        if not flexible:
            break
        widest = max(flexible, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1
    return widths


def _format_line(cells: Sequence[str], heads: Sequence[Column], widths: Sequence[int], *, coloured: bool) -> str:
    parts = []
    for cell, head, width in zip(cells, heads, widths, strict=True):
        text = shorten(cell, width)
        space = " " * (width - display_width(text))
        style = STATE_STYLES.get(text.removeprefix("✔ "), "") if coloured else ""
        text = paint(text, style) if style else text
        parts.append(space + text if head.right else text + space)
    return GAP.join(parts).rstrip()


def shorten(text: str, width: int) -> str:
    """Cut a text to this width by leaving out its middle."""
    if display_width(text) <= width:
        return text
    head, tail = "", ""
    while display_width(head) + display_width(tail) + 1 < width:
        middle = text[len(head) : len(text) - len(tail)]
        head, tail = (head + middle[0], tail) if len(head) <= len(tail) else (head, middle[-1] + tail)
    while display_width(head) + display_width(tail) + 1 > width and head:
        head = head[:-1]
    return head + ELLIPSIS + tail


def display_width(text: str) -> int:
    """The columns that a text takes on the screen: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def screen_width() -> int | None:
    """The terminal's width, or None for a pipe: there nothing is shortened, so that grep finds it."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line. Empty values are left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, gap, tail = printable(value).partition(" ")
        print(f"{paint(f'{name:<{width}}', 'dim')}  {paint(first, STATE_STYLES.get(first, ''))}{gap}{tail}")


def format_duration(us: int) -> str:
    """Format a duration in its two largest units: 7s, 4m10s, 2h5m, 3d4h."""
    seconds = max(0, us) // 1_000_000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if seconds < 86_400:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{days}d{hours}h" if hours and days < 10 else f"{days}d"


def now_us() -> int:
    import time

    return time.time_ns() // 1000


def format_age(us: int | None, now: int) -> str:
    """Format how long ago a time was, or nothing for None."""
    return format_duration(now - us) if us else ""


def format_timestamp(us: int | None, now: int) -> str:
    """Format a time in the local zone, with its age: 2025-11-15 02:30:00+01:00 (4m ago)."""
    if not us:
        return ""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(us / 1_000_000, tz=UTC).astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{moment} ({format_duration(now - us)} ago)" if us <= now else f"{moment} (in {format_duration(us - now)})"
