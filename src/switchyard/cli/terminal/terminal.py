"""Keeps text from elsewhere from controlling a terminal, whichever command prints it. It knows no command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from switchyard.model.rules.names import HIDDEN_CHARACTERS

UNSAFE_CHARACTER = rf"[\x00-\x08\x0b\x0c\x0e-\x1f{HIDDEN_CHARACTERS}]"
# Any text may have colours. Everything else that a terminal would obey is foreign.
_FOREIGN = re.compile(rf"(\x1b\[[0-9;:]{{0,32}}m)|{UNSAFE_CHARACTER}")
# What `yard` and rich write to draw a view anew: they clear lines and the screen, and move and hide the cursor.
_FOREIGN_IN_DRAWING = re.compile(rf"(\x1b\[(?:[0-9;:]{{0,32}}[mKHJA]|\?25[hl]))|{UNSAFE_CHARACTER}")
CLEAR_LINE = "\x1b[K"  # from the cursor on


def visible_mark(char: str) -> str:
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def marked(text: str, foreign: re.Pattern[str] = _FOREIGN) -> str:
    """Return the text with marks for all that a terminal would obey, except colours."""
    return foreign.sub(lambda match: match[1] or visible_mark(match[0]), text)


def drawing(stream: TextIO) -> TextIO:
    """Return the stream for a view that is drawn anew in place. Foreign text in the view must be marked before."""
    return cast("TextIO", stream.for_drawing()) if isinstance(stream, _GuardedStream) else stream


def clear_line(stream: TextIO) -> None:
    drawing(stream).write(CLEAR_LINE)


@contextmanager
def guarded_terminal() -> Iterator[None]:
    """Show foreign control and invisible characters as marks on a terminal meanwhile. Pipes get every byte."""
    streams = sys.stdout, sys.stderr
    try:
        sys.stdout, sys.stderr = (_GuardedStream(stream) if _is_terminal(stream) else stream for stream in streams)
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


class _GuardedStream:
    """A stream of text to a terminal."""

    def __init__(self, stream: TextIO, foreign: re.Pattern[str] = _FOREIGN) -> None:
        self._stream = stream
        self._foreign = foreign

    def for_drawing(self) -> _GuardedStream:
        return _GuardedStream(self._stream, _FOREIGN_IN_DRAWING)

    def write(self, text: str) -> int:
        self._stream.write(marked(text, self._foreign))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
