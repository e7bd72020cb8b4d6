"""Tables and times as people read them: aligned, one line per row, fitted to the width. It knows no command."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.cli.output import STATE_STYLES, has_colour, paint, printable

GAP = "  "
FLEXIBLE_MIN = 8  # a shortened column keeps at least this many characters
ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. A flexible column may be shortened, an optional one left out when space is short; `right`: numbers."""

    title: str
    flexible: bool = False
    optional: bool = False
    right: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print the table, fitted to the terminal; into a pipe, whole."""
    for line in format_table(columns, rows, width=screen_width(), coloured=has_colour()):
        print(line)


def format_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None, coloured: bool
) -> list[str]:
    """The lines of a table. `width` none: every column, as wide as it needs."""
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
    """The columns to show: while even shortened ones are too wide, leave out empty ones, then optional ones."""
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
    """Take what is too much from the widest flexible column, again and again."""
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
    """The text, or its beginning and end: the middle says least."""
    if display_width(text) <= width:
        return text
    head, tail = "", ""
    while display_width(head) + display_width(tail) + 1 < width:
        rest = text[len(head) : len(text) - len(tail)]
        head, tail = (head + rest[0], tail) if len(head) <= len(tail) else (head, rest[-1] + tail)
    while display_width(head) + display_width(tail) + 1 > width and head:
        head = head[:-1]
    return head + ELLIPSIS + tail


def display_width(text: str) -> int:
    """Columns on the screen: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def screen_width() -> int | None:
    """The terminal's width; in a pipe nothing is shortened, so that grep finds it."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other; what is empty is left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, gap, rest = printable(value).partition(" ")
        print(f"{paint(f'{name:<{width}}', 'dim')}  {paint(first, STATE_STYLES.get(first, ''))}{gap}{rest}")


def format_duration(us: int) -> str:
    """A length of time in the two largest units that matter: 7s, 4m10s, 2h5m, 3d4h."""
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
    """How long ago; empty for never."""
    return format_duration(now - us) if us else ""


def format_timestamp(us: int | None, now: int) -> str:
    """A moment in full, in the reader's zone, with its age: 2025-11-15 02:30:00+01:00 (4m ago)."""
    if not us:
        return ""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(us / 1_000_000, tz=UTC).astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{moment} ({format_duration(now - us)} ago)" if us <= now else f"{moment} (in {format_duration(us - now)})"
