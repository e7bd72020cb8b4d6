"""Writes job output: byte for byte into a pipe, without control characters to a terminal. It knows no command."""

from __future__ import annotations

import codecs
import re
import sys

from switchyard.cli.terminal.output import print_notice
from switchyard.cli.terminal.terminal import UNSAFE_CHARACTER, visible_mark

# Characters that can move the cursor, retitle the window, type for the user, or show text in another order than it has.
# Colours (SGR), \n, \t and \r pass.
UNSAFE_CHARACTERS = re.compile(rf"(\x1b\[[0-9;:]{{0,32}}m)|{UNSAFE_CHARACTER}")
PARTIAL_COLOUR = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")  # the rest of a colour may come with the next bytes
RESET_COLOUR = "\x1b[0m"


class TerminalFilter:
    """Turns bytes into text that cannot control a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unfinished = ""
        self._is_coloured = False

    def feed(self, data: bytes, *, is_end: bool = False) -> str:
        text = self._unfinished + self._decoder.decode(data, final=is_end)
        begun = None if is_end else PARTIAL_COLOUR.search(text)
        self._unfinished = text[begun.start() :] if begun else ""
        shown = UNSAFE_CHARACTERS.sub(self._show, text[: begun.start()] if begun else text)
        return shown + RESET_COLOUR if is_end and self._is_coloured else shown

    def _show(self, match: re.Match[str]) -> str:
        if match[1]:
            self._is_coloured = True
            return match[1]
        return visible_mark(match[0])


class LogWriter:
    """Writes one stream of a job, with a notice where bytes are missing."""

    def __init__(self, name: str, *, to_stderr: bool, offset: int = 0) -> None:
        self.next_offset = offset
        self.count = 0
        self._name = name
        self._target = sys.stderr if to_stderr else sys.stdout
        self._filter = TerminalFilter() if self._target.isatty() else None

    def write(self, offset: int, data: bytes) -> None:
        if offset > self.next_offset:
            self._flush()
            gap = f"{offset - self.next_offset} bytes of {self._name} from offset {self.next_offset} on"
            print_notice(f"… {gap} were left out: over the server's bound …")
        self._put(data[max(0, self.next_offset - offset) :])
        self.next_offset = max(self.next_offset, offset + len(data))
        self.count += len(data)
        self._flush()

    def write_at(self, offset: int, data: bytes) -> None:
        """Write a part of a file, which may begin again at an earlier offset."""
        self.next_offset = offset
        self.write(offset, data)

    def begin(self, attempt: int) -> None:
        """Begin the output of another attempt, at offset 0."""
        self.end()
        print_notice(f"… attempt {attempt} …")
        self.next_offset = 0

    def end(self) -> None:
        if self._filter is not None:
            self._target.write(self._filter.feed(b"", is_end=True))
        self._flush()

    def _put(self, data: bytes) -> None:
        if self._filter is not None:
            self._target.write(self._filter.feed(data))
        else:
            self._target.flush()
            self._target.buffer.write(data)

    def _flush(self) -> None:
        self._target.flush()


def write_bytes(data: bytes) -> None:
    """Write text from elsewhere to stdout: filtered on a terminal, byte for byte into a pipe."""
    writer = LogWriter("stdout", to_stderr=False)
    writer.write(0, data)
    writer.end()
