"""Writes job output: byte for byte into a pipe, without control characters to a terminal. It knows no command."""

from __future__ import annotations

import codecs
import re
import sys

from switchyard.cli.output import print_notice

# Characters that can move the cursor, retitle the window or type for the user. Colours (SGR), \n, \t and \r pass.
UNSAFE_CHARACTERS = re.compile(r"(\x1b\[[0-9;:]{0,32}m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
PARTIAL_COLOUR = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")  # the rest of a colour may come with the next bytes
RESET_COLOUR = "\x1b[0m"


class TerminalFilter:
    """Turns bytes into text that cannot control a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._is_coloured = False

    def feed(self, data: bytes, *, is_end: bool = False) -> str:
        text = self._rest + self._decoder.decode(data, final=is_end)
        begun = None if is_end else PARTIAL_COLOUR.search(text)
        self._rest = text[begun.start() :] if begun else ""
        shown = UNSAFE_CHARACTERS.sub(self._show, text[: begun.start()] if begun else text)
        return shown + RESET_COLOUR if is_end and self._is_coloured else shown

    def _show(self, match: re.Match[str]) -> str:
        if match[1]:
            self._is_coloured = True
            return match[1]
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


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
