"""The lines of a pod's log, and where to go on after an interruption. No I/O.

The log is asked for with timestamps. Each line is then `TIMESTAMP TEXT`, and the timestamp says where to go on, also
after the kubelet has rotated the file. The API takes whole seconds only, so lines that are known already come again:
they are skipped up to the last known line.
"""

from __future__ import annotations

import re
from datetime import datetime

from msgspec import Struct

STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
STAMP_BYTES_MAX = 35
# stdout and stderr are stamped apart, so neighbouring lines may be in the wrong order by this much.
DISORDER_S = 0.005


class LogPosition(Struct, frozen=True):
    """The end of the last whole line: how many bytes of output there are up to it, and how to find it in the log."""

    size: int = 0
    stamp: str = ""  # of the last whole line; empty: the beginning of the log
    count: int = 0  # how many lines with exactly this stamp there are, that one included

    @property
    def since(self) -> str:
        """For the parameter `sinceTime`: the stamp in whole seconds; empty: from the beginning."""
        return re.sub(r"\.\d+", "", self.stamp)


class LogReader:
    """Takes a log in pieces and gives the output that comes after a position."""

    def __init__(self, position: LogPosition) -> None:
        self.position = position
        self._size = position.size
        self._last = position  # the line after which new output begins
        self._is_skipping = bool(position.stamp)
        self._matches = 0  # lines with the stamp of that line, so far
        self._head = b""  # the beginning of a line whose stamp is not complete yet
        self._stamp = ""  # of the present line
        self._is_in_line = False
        self._is_line_skipped = False

    def feed(self, piece: bytes) -> bytes:
        """The output in this piece. `position` moves on with every whole line."""
        data = self._head + piece if self._head else piece
        self._head = b""
        output: list[bytes] = []
        at = 0
        while at < len(data):
            if not self._is_in_line:
                begin = self._begin_line(data, at)
                if begin is None:
                    self._head = data[at:]
                    break
                at = begin
            newline = data.find(b"\n", at)
            end = len(data) if newline < 0 else newline + 1
            if not self._is_line_skipped:
                output.append(data[at:end])
                self._size += end - at
            if newline >= 0:
                self._end_line()
            at = end
        return b"".join(output)

    def end(self) -> bytes:
        """The log has ended: what is left of a line without a stamp."""
        rest, self._head = self._head, b""
        if rest and not self._is_skipping:
            self._size += len(rest)
            return rest
        return b""

    def _begin_line(self, data: bytes, at: int) -> int | None:
        """Read the stamp of a line. Returns where its text begins; None: the stamp is not complete."""
        found = STAMP.match(data, at, at + STAMP_BYTES_MAX)
        if found is None or data[found.end() : found.end() + 1] != b" ":
            is_cut = len(data) - at <= STAMP_BYTES_MAX and b"\n" not in data[at:] and b" " not in data[at:]
            if is_cut:
                return None
            self._start(stamp="")  # the rest of a line that began before `since`, or a message of the kubelet
            return at
        self._start(stamp=found[0].decode("ascii"))
        return found.end() + 1

    def _start(self, stamp: str) -> None:
        self._is_in_line, self._stamp = True, stamp
        self._is_line_skipped = self._is_skipping
        if not self._is_skipping or not stamp:
            return
        if stamp == self._last.stamp:
            self._matches += 1
            self._is_skipping = self._matches < self._last.count
        elif _seconds(stamp) > _seconds(self._last.stamp) + DISORDER_S:
            self._is_skipping = self._is_line_skipped = False  # that line was rotated away

    def _end_line(self) -> None:
        self._is_in_line = False
        if self._is_line_skipped:
            return
        stamp, count = self.position.stamp, self.position.count
        if self._stamp and self._stamp != stamp:
            stamp, count = self._stamp, 0
        self.position = LogPosition(self._size, stamp, count + (1 if self._stamp else 0))


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp)).timestamp()
