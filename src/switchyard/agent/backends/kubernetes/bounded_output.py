"""Writes output into a file up to a bound, and says there once that more is dropped."""

from __future__ import annotations

from typing import BinaryIO


class BoundedOutput:
    """`size`: how many bytes of output there were before, also those that were dropped."""

    def __init__(self, file: BinaryIO, size: int, bytes_max: int) -> None:
        self._file = file
        self._size = size
        self._bytes_max = bytes_max

    def begin(self) -> None:
        """Remove what the file has beyond `size`: it comes again."""
        self._file.truncate(min(self._size, self._bytes_max))
        if self._size > self._bytes_max:
            self._file.write(self._notice)

    def write(self, data: bytes) -> None:
        room = self._bytes_max - self._size
        if room > 0:
            self._file.write(data[:room])
        self._size += len(data)
        if 0 <= room < len(data):
            self._file.write(self._notice)

    @property
    def _notice(self) -> bytes:
        return f"\n--- output beyond {self._bytes_max} bytes is dropped ---\n".encode()
