"""An HTTP response that refuses a truncated head. http.client takes the end of the connection for the end of the head.

A response that is cut after the status code would then count as a response without a body: an accepted submit
would look like a foreign server, and a cut `404` like a missing job.
"""

from __future__ import annotations

import http.client
from typing import Any, BinaryIO, cast


class WholeHeadResponse(http.client.HTTPResponse):
    """Raises IncompleteRead if the connection ends within the status line or the headers."""

    def begin(self) -> None:
        file: BinaryIO = self.fp
        self.fp = cast("Any", _HeadLines(file))
        try:
            super().begin()
        finally:
            if cast("Any", self.fp) is not None:  # None: http.client has closed it
                self.fp = cast("Any", file)


class _HeadLines:
    """Reads the lines of a head. A line without a newline means that the connection ended too soon."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._has_begun = False

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(limit)
        # http.client handles an empty response (RemoteDisconnected) and a line over the limit (LineTooLong) itself.
        if not line.endswith(b"\n") and len(line) < limit and (line or self._has_begun):
            raise http.client.IncompleteRead(line)
        self._has_begun = True
        return line

    def close(self) -> None:
        self._file.close()

    def flush(self) -> None:
        self._file.flush()
