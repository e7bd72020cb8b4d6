"""One server per SQLite file: a lock on the file itself, by whatever name it was opened, and the name of its holder.

The lock is on one byte far behind all data, and belongs to the open file, not to the process. So it does not meet
SQLite's own locks, which are on other bytes, and SQLite does not drop it when it closes a connection. A hard link, a
symbolic link and a bind mount all lead to the same file, and so to the same lock. The kernel drops it when the process
ends, however it ends. On NFS such a lock goes to the file server, and holds between machines.
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
from switchyard.store.clock import wall_us
from switchyard.store.database import Database

# SQLite locks bytes at 2^30 (https://www.sqlite.org/fileformat2.html#the_lock_byte_page) and its files end below 2^48.
LOCK_BYTE = 2**62
HOLDER_SUFFIX = ".holder"  # the file beside the database that says who has the lock
TRIES_MAX = 10  # a restore may put another file under the name between our look and our lock
_LOCKED_ERRNOS = (errno.EAGAIN, errno.EACCES)


@contextmanager
def hold_file_lock(database: Database, who: str, *, next_step: str) -> Iterator[None]:
    """Hold the lock on an SQLite file; the file is made if there is none. PostgreSQL serves several: nothing is locked.

    `who`: what the next one is told about us. `next_step`: what we are told to do if another has the lock. Close every
    connection of this process before the lock ends: that closes a file, and with it SQLite's own locks.
    """
    if not database.is_sqlite:
        yield
        return
    file = sqlite_file(database.url)
    fd = _lock(file, next_step)
    note = _holder_file(file)
    since = datetime.fromtimestamp(wall_us() / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with suppress(OSError):  # a full disk: the lock holds all the same
        note.write_text(f"{who}, process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()
        os.close(fd)


def lock_holder(database: Database) -> str:
    """Who holds the lock on an SQLite file that is known to be in use."""
    file = sqlite_file(database.url)
    return _describe_holder(file, file.stat() if file.exists() else None)


def sqlite_file(url: sa.URL) -> Path:
    """The file of an SQLite URL, which may itself be a `file:` URI."""
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
            pass  # moved away meanwhile: look again
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
    """Raise Conflict if an SQLite file has a second name. For commands that open the file without the lock.

    SQLite keeps its newest changes beside the name that it opened. Under another name it would not see them.
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
    if not hasattr(fcntl, "F_OFD_SETLK"):  # not Linux: a lock on the whole file, in a space of its own
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # struct flock of 64-bit Linux: type, whence, start, length, process (0 for this kind of lock).
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCK_BYTE, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)


def _describe_holder(file: Path, stat: os.stat_result | None) -> str:
    """Who has the lock, as it wrote down; the kernel knows under which name it opened the file, if we may ask."""
    holders = list(_processes_with(stat)) if stat else []
    for opened in (*(path for _, path in holders), file):
        with suppress(OSError, UnicodeDecodeError):
            if words := _holder_file(opened).read_text(encoding="utf-8").strip():
                return words
    if holders:
        return f"process {holders[0][0]} on this machine"
    return "a process that cannot be seen from here, of another user, container or machine"


def _processes_with(stat: os.stat_result) -> Iterator[tuple[str, Path]]:
    """The other processes that hold a lock of our kind on a file, each with the name that it opened. Linux alone."""
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
