"""Writes the output of a pod into a file within a bound: its beginning and its end are kept, the middle is dropped.

A server keeps the first and the last half of its own bound (`logs.bytes_max`), whatever the cluster. On this machine
and on Slurm it takes them from the job's file, which has no bound. Here the file gets a hole in its middle: every byte
keeps its offset, and a hole takes no disk.

On a file system without holes (NFS before 4.2) the end is dropped instead.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import BinaryIO

from switchyard.agent.log import line

STEPS = 8  # how often the hole grows while as much as the bound is written
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)

log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class BoundedOutput:
    """`file` can be written at any place. `size`: how many bytes of output there were before."""

    def __init__(self, file: BinaryIO, size: int, bytes_max: int) -> None:
        self._file = file
        self._size = size
        self._bytes_max = bytes_max
        self._half = bytes_max // 2
        self._step = max(1, bytes_max // STEPS)
        self._hole_due = max(bytes_max, size)  # the size at which the hole is made or grows
        self._is_end_dropped = False

    def begin(self) -> None:
        """Remove what the file has beyond `size`: it comes again."""
        self._is_end_dropped = os.fstat(self._file.fileno()).st_size < self._size
        end = min(self._size, self._bytes_max) if self._is_end_dropped else self._size
        self._file.truncate(end)
        self._file.seek(end)
        if self._is_end_dropped:
            self._file.write(self._notice_of("the end of"))

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._is_end_dropped:
            return
        self._file.write(data)
        if self._size > self._hole_due:
            self._hole_due = self._size + self._step
            self._drop_middle()

    def _drop_middle(self) -> None:
        end = self._size - self._half + self._step  # at most half of the bound stays until the next time
        self._file.flush()
        try:
            _punch_hole(self._file.fileno(), self._half, end - self._half)
        except OSError as exc:
            log.warning(line("output-end-dropped", file=self._file.name, error=exc))
            self._is_end_dropped = True
            self._file.truncate(self._bytes_max)
            self._file.seek(self._bytes_max)
            self._file.write(self._notice_of("the end of"))
            return
        # Seen only if the server's bound is above this one.
        os.pwrite(self._file.fileno(), self._notice_of("the middle of")[: end - self._half], self._half)

    def _notice_of(self, part: str) -> bytes:
        return f"\n--- {part} output beyond {self._bytes_max} bytes is dropped ---\n".encode()


def _punch_hole(number: int, offset: int, size: int) -> None:
    if _fallocate is None:
        raise OSError("this system has no holes in files")
    if _fallocate(number, KEEP_SIZE | PUNCH_HOLE, offset, size):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
