"""The server's files are for its own user alone: they hold the environment of every job and the hashes of tokens."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

from switchyard.store.engine import file_lock
from switchyard.store.engine.database import Database

UMASK = 0o077
DATABASE_FILE_SUFFIXES = (
    "",
    "-wal",
    "-shm",
    "-journal",
    file_lock.HOLDER_SUFFIX,
)  # the database file, and the files beside it
log = structlog.get_logger()


def set_private_umask() -> None:
    """Let only this user read the files that this process makes from here on."""
    os.umask(UMASK)


def restrict_file_modes(data: Path, database: Database) -> None:
    """Take away read rights of other users, which an earlier version left on files. Folders keep their modes."""
    files = [data / "server.lock"]
    if database.is_sqlite:
        file = file_lock.sqlite_file(database.url).resolve()
        files += [file.with_name(file.name + suffix) for suffix in DATABASE_FILE_SUFFIXES]
    for path in files:
        try:
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and mode & UMASK:
                path.chmod(stat.S_IMODE(mode) & ~UMASK)
                log.warning("others could read a file of the server; now they cannot", file=str(path))
        except FileNotFoundError:
            continue
        except OSError as exc:
            log.error("others can read a file of the server", file=str(path), error=str(exc))
