"""Prints to a terminal or a pipe: the forms of -o, colour, notices, questions. It knows no command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from switchyard.errors import EXIT_OK, BadRequest
from switchyard.model.rules.names import HIDDEN_CHARACTERS, escape_hidden, printable_line
from switchyard.model.wire.api import Deleted

SHOWN_DEPTH_MAX = 100  # levels that are shown; a server takes 64, one of an older version took more
TOO_DEEP = "(nested too deeply to be shown)"

_HIDDEN = re.compile(f"[{HIDDEN_CHARACTERS}]")
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
    "QUEUED": "yellow",
    "DYNAMIC_RUNNING": "blue",
    "FAILING": "red",
    "ABORTING": "dim",
    "ABORTED": "dim",
    "SKIPPED": "dim",
    "RECOVERED": "green",
    "up": "green",
    "down": "red",
    "cordoned": "yellow",
    "paused": "yellow",
    "yes": "green",
    "wait": "yellow",
    "no": "red",
}


def emit(content: Struct | Iterable[Struct], form: str | None, *, key: str = "name") -> bool:
    """Print a message, or a list of messages, in the form of `-o`. Return False without `-o`: nothing is printed.

    `-o name` prints the attribute `key` of each message, such as "id" or "status.name".
    """
    if form is None:
        return False
    if form == "name":
        value_of = attrgetter(key)
        for message in (content,) if isinstance(content, Struct) else content:
            value = value_of(message)
            print("" if value is None else printable(str(value)))
    elif isinstance(content, Struct):
        _dump(all_fields(content), form)
    else:
        _dump([all_fields(message) for message in content], form)
    return True


def print_result(result: Struct, form: str | None, text: str, *, key: str = "name") -> int:
    """Print the result of a verb in the form of `-o`, else this text about it. Return the exit code of success."""
    if not emit(result, form, key=key):
        print(text)
    return EXIT_OK


def _dump(value: Any, form: str) -> None:
    """Print JSON or YAML. Characters that would reorder or hide text are escaped: a reader sees them, a program too."""
    if form == "json":
        print(escape_hidden(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))
        return
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    print(yaml.safe_dump(value, sort_keys=False, width=1000) if _HIDDEN.search(text) else text, end="")


def all_fields(value: Any, depth: int = 0) -> Any:
    """Return a message with all fields, including defaults, so that scripts can rely on every field.

    Values nested deeper than SHOWN_DEPTH_MAX become a note, so that one such value does not spoil a whole list.
    """
    if depth >= SHOWN_DEPTH_MAX and isinstance(value, Struct | list | dict):
        return TOO_DEEP
    if isinstance(value, Struct):
        return {name: all_fields(getattr(value, name), depth + 1) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [all_fields(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: all_fields(item, depth + 1) for key, item in value.items()}
    return msgspec.to_builtins(value)


def printable(text: str) -> str:
    """Replace characters in foreign text that could move the cursor, forge a line or reorder a table."""
    return printable_line(text)


def has_colour(stream: TextIO | None = None) -> bool:
    """Whether to colour: only on a terminal, and not with NO_COLOR."""
    return is_live(stream or sys.stdout) and not os.environ.get("NO_COLOR")


def is_live(stream: TextIO) -> bool:
    """Whether the stream is a terminal on which lines can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, *, stream: TextIO | None = None) -> str:
    return f"\x1b[{ANSI_STYLES[style]}m{text}\x1b[0m" if style and has_colour(stream) else text


def paint_state(word: str, *, stream: TextIO | None = None) -> str:
    """Colour a state, health or verdict."""
    return paint(word, STATE_STYLES.get(word, ""), stream=stream)


def print_given_up(deleted: Deleted) -> None:
    """Say how many output files went with an agent."""
    if count := deleted.outputs_given_up:
        print_notice(f"The output files of {count} attempt{'s' if count > 1 else ''} were not sent and are given up.")


def print_notice(text: str) -> None:
    """Print a line for the reader to stderr: stdout is for data."""
    sys.stdout.flush()
    print(printable(text), file=sys.stderr, flush=True)


def confirm(question: str, *, force: bool) -> bool:
    """Ask before an irreversible action. Without a terminal to ask on, raise unless forced."""
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
