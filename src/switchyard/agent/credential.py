"""The agent's own credential and its data folder: private files, written whole, used by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from switchyard.errors import Conflict, Malformed, Unavailable

FILE = "credential.json"
LOCK = "lock"


class Credential(Struct, frozen=True):
    """Who this agent is to its server. `journal`: the identity of this disk, in case the journal itself is lost."""

    agent: str
    cluster: str
    name: str
    credential: str
    server: str
    journal: str


def load(directory: Path) -> Credential | None:
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credential)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as exc:
        raise Malformed(
            f"{path} is not a credential: {exc}.", next_step="Remove the file and join again with a join token."
        ) from exc
    except OSError as exc:
        raise Unavailable(f"{path} cannot be read: {exc}.") from exc


def save(directory: Path, credential: Credential) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    path, new = directory / FILE, directory / f"{FILE}.new"
    try:
        new.unlink(missing_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(credential))
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        _sync(directory)
    except OSError as exc:
        raise Unavailable(f"The credential cannot be kept in {directory}: {exc}.") from exc


def remove(directory: Path) -> None:
    (directory / FILE).unlink(missing_ok=True)


def claim_folder(directory: Path) -> IO[str]:
    """Make the folder, and hold it for as long as the returned file is open."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (directory / LOCK).open("a+")
    except OSError as exc:
        raise Unavailable(
            f"The data folder {directory} cannot be used: {exc}.", next_step="Choose another one with --data."
        ) from exc
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.seek(0)
        owner = file.read(32).strip() or "unknown"
        file.close()
        raise Conflict(
            f"Another agent (pid {owner}) already uses {directory}.",
            next_step="Stop it, or give this one its own folder with --data.",
        ) from exc
    with contextlib.suppress(OSError):  # a full disk: the next one to come is told less, that is all
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    return file


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
