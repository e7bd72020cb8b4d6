"""Keeps text from elsewhere from controlling a terminal, whichever command prints it. It knows no command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from switchyard.model.names import HIDDEN_CHARACTERS

UNSAFE_CHARACTER = rf"[\x00-\x08\x0b\x0c\x0e-\x1f{HIDDEN_CHARACTERS}]"
# `yard` itself writes colours, and clears lines and the screen. Everything else that a terminal would obey is foreign.
_FOREIGN = re.compile(rf"(\x1b\[[0-9;:]{{0,32}}[mKHJ])|{UNSAFE_CHARACTER}")


def visible_mark(char: str) -> str:
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


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

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_FOREIGN.sub(lambda match: match[1] or visible_mark(match[0]), text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
