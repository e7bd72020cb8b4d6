"""The agent's own files: readable by its account alone, replaced as a whole, read within a bound.

There are two umasks: files of the agent are private; jobs get the umask that the agent was started with.
"""

from __future__ import annotations

import os
from pathlib import Path

from switchyard.errors import Malformed

AGENT_UMASK = 0o077
_initial_umask: list[int] = []  # the umask that the agent was started with


def private_opener(path: str, flags: int) -> int:
    """For `open`: make a new file readable by the agent alone. Jobs pass through its folder."""
    return os.open(path, flags, 0o600)


def replace_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Write a private file that appears under its name complete or not at all. `is_durable`: survive a power cut."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=private_opener) as file:
        file.write(content)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    new.rename(path)
    if is_durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: fsync of a file does not cover its name."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read_bounded(path: Path, bytes_max: int, *, advice: str) -> tuple[bytes, os.stat_result]:
    """Read an operator's file, with the file's status. Raises Malformed if it is missing or too large."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            body = file.read(bytes_max + 1)
    except OSError as exc:
        raise Malformed(f"Cannot read {path}: {exc.strerror}.", next_step=advice) from exc
    if len(body) > bytes_max:
        raise Malformed(f"{path}: over {bytes_max} bytes.")
    return body, status


def file_version(path: Path) -> tuple[int, ...]:
    """Values that differ when the file has changed; empty: there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def set_private_umask() -> None:
    """Make all files that the agent creates from now on private."""
    before = os.umask(AGENT_UMASK)
    if not _initial_umask:
        _initial_umask.append(before)


def job_umask() -> int:
    """The umask of jobs and of commands that submit them; -1: that of this process."""
    return _initial_umask[0] if _initial_umask else -1
