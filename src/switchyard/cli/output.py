"""What goes to the terminal or into a pipe: structured forms, colour, notices, questions. It knows no command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO, TypeVar

import msgspec
from msgspec import Struct

from switchyard.errors import BadRequest

T = TypeVar("T", bound=Struct)

DEPTH_MAX = 100  # levels that are shown; a server takes 64, one of an older version took more
TOO_DEEP = "(nested too deeply to be shown)"

ANSI_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
STATE_STYLES = {
    "PENDING": "yellow",
    "ASSIGNED": "cyan",
    "SUBMITTED": "cyan",
    "RUNNING": "blue",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "dim",
    "REJECTED": "red",
    "up": "green",
    "down": "red",
    "cordoned": "yellow",
    "paused": "yellow",
    "yes": "green",
    "wait": "yellow",
    "no": "red",
}


def emit(value: T, form: str, *, name: Callable[[T], str]) -> None:
    """One thing in the form asked for."""
    if form == "name":
        print(printable(name(value)))
    else:
        _dump(all_fields(value), form)


def emit_list(values: Iterable[T], form: str, *, name: Callable[[T], str]) -> None:
    """A list in the form asked for; names go out as they come."""
    if form == "name":
        for value in values:
            print(printable(name(value)))
    else:
        _dump([all_fields(value) for value in values], form)


def _dump(value: Any, form: str) -> None:
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000), end="")


def all_fields(value: Any, depth: int = 0) -> Any:
    """A message with every field, also those at their defaults: scripts should find what they look for.

    A note replaces what is nested deeper than DEPTH_MAX: one odd value must not hide all others of a list.
    """
    if depth >= DEPTH_MAX and isinstance(value, Struct | list | dict):
        return TOO_DEEP
    if isinstance(value, Struct):
        return {name: all_fields(getattr(value, name), depth + 1) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [all_fields(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: all_fields(item, depth + 1) for key, item in value.items()}
    return msgspec.to_builtins(value)


def printable(text: str) -> str:
    """Text from elsewhere without control characters, which could move the cursor or forge a line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def has_colour(stream: TextIO | None = None) -> bool:
    """Colour only where someone sees it and did not say no."""
    shown = stream or sys.stdout
    return shown.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, *, stream: TextIO | None = None) -> str:
    return f"\x1b[{ANSI_STYLES[style]}m{text}\x1b[0m" if style and has_colour(stream) else text


def paint_state(word: str, *, stream: TextIO | None = None) -> str:
    """A state, health or verdict in its own colour."""
    return paint(word, STATE_STYLES.get(word, ""), stream=stream)


def print_notice(text: str) -> None:
    """A line for the reader beside the data: never on stdout."""
    sys.stdout.flush()
    print(printable(text), file=sys.stderr, flush=True)


def confirm(question: str, *, force: bool) -> bool:
    """Ask before what cannot be undone. Where nobody can answer, nothing is done unless forced."""
    if force:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadRequest(
            f"{question} There is no terminal to ask on.", next_step="Add --force to do it without asking."
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print_notice("Nothing was done.")
    return False
