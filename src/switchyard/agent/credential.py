"""The agent's own credential and its data folder: private files, written whole, used by one process at a time.

Around a rotation there are two credentials. The next one is kept here before it is first used, and the one before it
as long as there is one: whatever is lost at whatever moment, here or at the server, one of them holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from switchyard.agent.accounts import private_opener
from switchyard.agent.log import line
from switchyard.errors import Conflict, Malformed, Unavailable

CREDENTIAL_FILE = "credential.json"
LOCK_FILE = "lock"

log = logging.getLogger(__name__)


class Credential(Struct, frozen=True):
    """Who this agent is to its server. `journal`: the identity of this disk, in case the journal itself is lost."""

    agent: str
    cluster: str
    name: str
    credential: str
    server: str
    journal: str
    next: str | None = None  # from a rotation, not known to hold yet
    previous: str | None = None  # a server that was restored from a backup may know only this one
    made_s: float = 0.0  # wall clock of this machine: only for when to rotate


class AgentCredentials:
    """The credentials this agent may show, tried in turn. Used from any thread."""

    def __init__(self, directory: Path, kept: Credential) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self.kept = kept if kept.made_s else msgspec.structs.replace(kept, made_s=time.time())

    @property
    def bearer(self) -> str:
        """The newest that was not refused."""
        return next((each for each in self._all() if each not in self._refused), self.kept.credential)

    def age_s(self) -> float:
        return time.time() - self.kept.made_s

    def renew(self, credential: str) -> None:
        """Keep the next credential, then use it."""
        with self._lock:
            kept = msgspec.structs.replace(self.kept, next=credential)
            save_credential(self._directory, kept)
            self.kept = kept

    def accepted(self, sent: str) -> None:
        """The server took this one: of two, it is the one that holds."""
        kept = self.kept
        if sent == kept.credential and not self._refused:
            return
        with self._lock:
            kept = self.kept
            if sent == kept.next:
                changes = {"credential": sent, "previous": kept.credential, "next": None, "made_s": time.time()}
            elif sent == kept.credential and kept.next in self._refused:
                changes = {"next": None}
            elif sent == kept.previous and kept.credential in self._refused:
                changes = {"credential": sent, "previous": None, "next": None}
            else:
                return
            self.kept = msgspec.structs.replace(kept, **changes)
            self._refused.clear()
            try:
                save_credential(self._directory, self.kept)
            except Unavailable as exc:  # what is kept still has this one: the next start finds it again
                log.warning(line("credential-not-kept", error=exc.detail))

    def refused(self, sent: str) -> bool:
        """The server does not take this one. True: there is another to try, or another is in use by now."""
        with self._lock:
            is_outdated = sent != self.bearer
            self._refused.add(sent)
            return is_outdated or any(each not in self._refused for each in self._all())

    def _all(self) -> list[str]:
        kept = self.kept
        return [each for each in (kept.next, kept.credential, kept.previous) if each is not None]


def load_credential(directory: Path) -> Credential | None:
    path = directory / CREDENTIAL_FILE
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


def save_credential(directory: Path, credential: Credential) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    path, new = directory / CREDENTIAL_FILE, directory / f"{CREDENTIAL_FILE}.new"
    try:
        new.unlink(missing_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(credential))
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        _sync_folder(directory)
    except OSError as exc:
        raise Unavailable(f"The credential cannot be kept in {directory}: {exc}.") from exc


def remove_credential(directory: Path) -> None:
    (directory / CREDENTIAL_FILE).unlink(missing_ok=True)


def lock_data_folder(directory: Path) -> IO[str]:
    """Make the folder, and hold it for as long as the returned file is open."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `open`, since a Path's has no opener. A lock file of an older version may be open to all.
        file = open(directory / LOCK_FILE, "a+", opener=private_opener)  # noqa: SIM115
        os.fchmod(file.fileno(), 0o600)
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


def _sync_folder(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
