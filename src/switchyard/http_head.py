"""An HTTP answer whose head arrived whole. http.client takes the end of the connection for the end of the head.

An answer that is cut behind the status code would then count as an answer without a body: a submit that was accepted
would look like a foreign server, and `404` like the server's word that there is no such job.
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
    """The lines of a head. Each one ends with a newline, or the connection ended too soon."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._has_begun = False

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(limit)
        # Nothing at all is RemoteDisconnected to http.client, and a line over the limit is LineTooLong.
        if not line.endswith(b"\n") and len(line) < limit and (line or self._has_begun):
            raise http.client.IncompleteRead(line)
        self._has_begun = True
        return line

    def close(self) -> None:
        self._file.close()

    def flush(self) -> None:
        self._file.flush()
