"""One sync of a file system for all writers that wait for one. It knows nothing of what they wrote."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from pathlib import Path

_libc_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
HAS_SYNCFS = _libc_syncfs is not None


class SharedSync:
    """Makes durable what was written to the file system of one folder. Threads may share it.

    A sync covers only what was written before it began. So a thread that comes during a sync waits for the next one,
    together with all others that came meanwhile.

    A failed sync is told to every thread that wrote before it ended. Linux reports a failed write once to each
    descriptor that was open at that time, and a later sync succeeds although the bytes are lost. So one descriptor
    stays open for all syncs, and failures are counted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._change = threading.Condition()
        self._begun = 0  # syncs
        self._done = 0  # the last sync that succeeded
        self._is_running = False
        self._failures = 0
        self._failure = (errno.EIO, "")  # the last one: number and text
        self._descriptor, self._device = -1, -1
        self._close: weakref.finalize[[int], SharedSync] | None = None

    def begin(self) -> int:
        """Return the number of failed syncs, for `run`. Call this before the first write."""
        with self._change:
            while self._is_running and self._is_elsewhere():
                self._change.wait()
            if self._is_elsewhere():
                self._open()
            return self._failures

    def run(self, failures: int) -> None:
        """Return after a sync that began after this call. Raise OSError if one failed since `begin` gave `failures`."""
        with self._change:
            wanted = self._begun + 1
            while self._failures == failures and self._done < wanted:
                if self._is_running:
                    self._change.wait()
                else:
                    self._sync()
            if self._failures != failures:
                raise OSError(*self._failure, str(self._folder))

    def _sync(self) -> None:
        """Run one sync, without the lock meanwhile. Count it if it fails."""
        self._begun += 1
        number, self._is_running = self._begun, True
        self._change.release()
        is_done, failure = False, (errno.EIO, "the sync was interrupted")
        try:
            _sync_file_system(self._descriptor)
            is_done = True
        except OSError as exc:
            failure = (exc.errno or errno.EIO, exc.strerror or str(exc))
        finally:
            self._change.acquire()
            self._is_running = False
            if is_done:
                self._done = number
            else:
                self._count_failure(failure)
            self._change.notify_all()

    def _is_elsewhere(self) -> bool:
        """Whether the folder is not on the open file system: nothing is open yet, or another one was mounted."""
        return self._folder.stat().st_dev != self._device

    def _open(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        if self._close is not None:
            self._close()
            self._count_failure((errno.ESTALE, "another file system was mounted"))
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor, self._device = descriptor, os.fstat(descriptor).st_dev

    def _count_failure(self, failure: tuple[int, str]) -> None:
        self._failures += 1
        self._failure = failure


def _sync_file_system(descriptor: int) -> None:
    """Make everything durable that was written to this file system.

    Linux before 5.8 does not tell of a failed write here; the hash of an object is checked whenever it is read.
    """
    assert _libc_syncfs is not None
    if _libc_syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
