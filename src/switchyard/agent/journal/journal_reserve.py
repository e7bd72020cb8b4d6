"""Disk room that is held for the journal, so that a job that fills the disk stops neither the agent nor its next start.

    JOURNAL-wal      is made so large beforehand. SQLite writes into it, so a write needs no further room.
    JOURNAL.reserve  is removed if the journal cannot be opened for want of room, and made again later.

SQLite takes what stands in the first file behind its own frames for the rest of an older log, and ignores it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

LOG_BYTES = 4 * 2**20  # below the size to which the journal cuts its log
RESERVE_BYTES = 2**20  # to open the journal: its log and index begin with less than 100 KiB
RESERVE_FREE_BYTES_MIN = 4 * LOG_BYTES  # with less on the disk, no room is taken
HOLD_EVERY_S = 5.0  # between two tries


class JournalReserve:
    """`release` comes before the journal is open, `hold` afterwards."""

    def __init__(self, journal: Path) -> None:
        self._log = journal.with_name(f"{journal.name}-wal")
        self._reserve = journal.with_name(f"{journal.name}.reserve")
        self._is_held = False
        self._tried_at = -HOLD_EVERY_S

    def release(self) -> bool:
        """Give the room to the journal that is being opened. False: none is held."""
        self._is_held = False
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def hold(self) -> None:
        """Take the room, unless it is held. Without room on the disk, a later call does it."""
        now = time.monotonic()
        if self._is_held or now - self._tried_at < HOLD_EVERY_S:
            return
        self._tried_at = now
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._log.parent).free < RESERVE_FREE_BYTES_MIN:
                return  # else running jobs would fail for want of this room
            _extend(self._log, LOG_BYTES)
            _extend(self._reserve, RESERVE_BYTES)
            self._is_held = True

    def note_growth(self) -> None:
        """The journal may have used the room that is held in its log, or cut the log."""
        self._is_held = False


def _extend(path: Path, size: int) -> None:
    """Make a file so large, with blocks on the disk. What it contains stays."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        have = os.fstat(fd).st_size
        if have < size:
            os.posix_fallocate(fd, have, size - have)
    finally:
        os.close(fd)
