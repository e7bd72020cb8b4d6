"""One server per SQLite file: a lock on the file, and a note that names the holder of the lock.

The lock is on one byte far behind all data and belongs to the open file, not to the process. So it does not conflict
with SQLite's own locks, and SQLite does not release it when it closes a connection. Hard links, symbolic links and bind
mounts of the file share the lock. The kernel releases it when the process ends. On NFS the file server keeps the lock,
so it also works between machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from switchyard.errors import Conflict, Unavailable
from switchyard.store.engine.clock import wall_us
from switchyard.store.engine.database import Database

# SQLite locks bytes at 2^30 (https://www.sqlite.org/fileformat2.html#the_lock_byte_page) and its files end below 2^48.
LOCK_BYTE = 2**62
HOLDER_SUFFIX = ".holder"  # the file beside the database that names the holder of the lock
TRIES_MAX = 10  # a restore may replace the file between the open and the lock
_LOCKED_ERRNOS = (errno.EAGAIN, errno.EACCES)


@contextmanager
def hold_file_lock(database: Database, who: str, *, next_step: str) -> Iterator[None]:
    """Hold the lock on an SQLite file, which is created if it is missing. On PostgreSQL nothing is locked.

    `who`: how the error of another process names us. `next_step`: of our own error if another process has the lock.
    Close every connection of this process before the lock ends: closing the file also releases SQLite's own locks.
    """
    if not database.is_sqlite:
        yield
        return
    file = sqlite_file(database.url)
    fd = _lock(file, next_step)
    note = _holder_file(file)
    since = datetime.fromtimestamp(wall_us() / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with suppress(OSError):  # a full disk: the lock works without the note
        note.write_text(f"{who}, process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()
        os.close(fd)


def lock_holder(database: Database) -> str:
    """Name the holder of the lock on an SQLite file that is in use."""
    file = sqlite_file(database.url)
    return _describe_holder(file, file.stat() if file.exists() else None)


def sqlite_file(url: sa.URL) -> Path:
    """Return the file of an SQLite URL, which may itself be a `file:` URI."""
    assert url.database
    if url.database.startswith("file:"):
        return Path(unquote(urlsplit(url.database).path)).absolute()
    return Path(url.database).absolute()


def _lock(file: Path, next_step: str) -> int:
    for _ in range(TRIES_MAX):
        try:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise Unavailable(
                f"The database {file} cannot be opened: {exc.strerror}.",
                next_step="Check that the file and its folder are there, and that this user may write to both.",
            ) from exc
        try:
            _lock_byte(fd)
            if os.path.samestat(os.fstat(fd), file.stat()):
                try:
                    _refuse_links(file, os.fstat(fd))
                except Conflict:
                    os.close(fd)
                    raise
                return fd
        except FileNotFoundError:
            pass  # moved away meanwhile: try again
        except OSError as exc:
            holder = _describe_holder(file, os.fstat(fd)) if exc.errno in _LOCKED_ERRNOS else ""
            os.close(fd)
            if not holder:
                raise Unavailable(
                    f"The database {file} cannot be locked: {exc.strerror}.",
                    next_step="Keep the SQLite file on a file system that has locks, or use --database postgresql://…",
                ) from exc
            raise Conflict(f"The database {file} is in use: {holder}.", next_step=next_step) from exc
        os.close(fd)
    raise Unavailable(f"The database {file} is being replaced again and again.")


def refuse_hard_links(database: Database) -> None:
    """Raise Conflict if an SQLite file has a hard link. For commands that open the file without the lock.

    SQLite keeps its newest changes in a file named after the name that it opened. Under another name they are missing.
    """
    file = sqlite_file(database.url) if database.is_sqlite else None
    if file is not None and file.exists():
        _refuse_links(file, file.stat())


def _refuse_links(file: Path, stat: os.stat_result) -> None:
    if stat.st_nlink > 1:
        raise Conflict(
            f"The database {file} has {stat.st_nlink} names (hard links): changes made under one would be lost under "
            "another.",
            next_step=f"Remove the others: `find / -xdev -samefile {file}` shows them. Then `yard db backup` makes "
            "backups.",
        )


def _lock_byte(fd: int) -> None:
    if not hasattr(fcntl, "F_OFD_SETLK"):  # not Linux: a lock on the whole file, separate from SQLite's locks
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # struct flock of 64-bit Linux: type, whence, start, length, process (0 for this kind of lock).
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCK_BYTE, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)


def _describe_holder(file: Path, stat: os.stat_result | None) -> str:
    """Name the holder of the lock from its note, which lies beside the name under which the holder opened the file."""
    holders = list(_processes_with(stat)) if stat else []
    for opened in (*(path for _, path in holders), file):
        with suppress(OSError, UnicodeDecodeError):
            if note := _holder_file(opened).read_text(encoding="utf-8").strip():
                return note
    if holders:
        return f"process {holders[0][0]} on this machine"
    return "a process that cannot be seen from here, of another user, container or machine"


def _processes_with(stat: os.stat_result) -> Iterator[tuple[str, Path]]:
    """Yield the other processes that hold such a lock on a file, with the name that each opened. Only on Linux."""
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        with suppress(OSError):
            for fd in (process / "fd").iterdir():
                with suppress(OSError):
                    if os.path.samestat(fd.stat(), stat) and "OFDLCK" in (process / "fdinfo" / fd.name).read_text():
                        yield process.name, fd.readlink()


def _holder_file(file: Path) -> Path:
    real = file.resolve()
    return real.with_name(real.name + HOLDER_SUFFIX)
