"""The agent's credential and its data folder: private files, used by one process at a time.

During a rotation there are several credentials. The next one is stored before its first use, and the previous one is
kept. So one of them is valid after a crash at any moment, here or at the server.
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

from switchyard.agent.log import line
from switchyard.agent.private_files import private_opener, replace_file
from switchyard.errors import Conflict, Malformed, Unavailable

CREDENTIAL_FILE = "credential.json"
LOCK_FILE = "lock"

log = logging.getLogger(__name__)


class Credential(Struct, frozen=True):
    """Who this agent is to its server. `journal`: the journal's id, in case the journal itself is lost."""

    agent: str
    cluster: str
    name: str
    credential: str
    server: str
    journal: str
    next: str | None = None  # from a rotation, not used yet
    previous: str | None = None  # the only one that a server restored from a backup may know
    made_s: float = 0.0  # wall clock, only to decide when to rotate


class AgentCredentials:
    """The credentials of this agent, tried in turn. Used from any thread."""

    def __init__(self, directory: Path, current: Credential) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self.incarnation = ""  # of this process, in the header of each call
        self.has_session = False  # the server has accepted this process
        self.current = current if current.made_s else msgspec.structs.replace(current, made_s=time.time())

    @property
    def bearer(self) -> str:
        """The newest credential that was not refused."""
        return next(
            (credential for credential in self._all() if credential not in self._refused), self.current.credential
        )

    def name_process(self, incarnation: str, *, has_session: bool) -> None:
        """Send this incarnation with each call from now on."""
        self.incarnation, self.has_session = incarnation, has_session

    def age_s(self) -> float:
        return time.time() - self.current.made_s

    def renew(self, credential: str) -> None:
        """Store the next credential, then use it."""
        with self._lock:
            current = msgspec.structs.replace(self.current, next=credential)
            save_credential(self._directory, current)
            self.current = current

    def note_accepted(self, sent: str) -> None:
        """Note that the server accepted this credential, and make it the current one."""
        current = self.current
        if sent == current.credential and not self._refused:
            return
        with self._lock:
            current = self.current
            if sent == current.next:
                changes = {"credential": sent, "previous": current.credential, "next": None, "made_s": time.time()}
            elif sent == current.credential and current.next in self._refused:
                changes = {"next": None}
            elif sent == current.previous and current.credential in self._refused:
                changes = {"credential": sent, "previous": None, "next": None}
            else:
                return
            self.current = msgspec.structs.replace(current, **changes)
            self._refused.clear()
            try:
                save_credential(self._directory, self.current)
            except Unavailable as exc:  # the stored file has this credential too: the next start finds it
                log.warning(line("credential-not-kept", error=exc.detail))

    def note_refused(self, sent: str) -> bool:
        """Note that the server refused this credential. True: another one can be tried, or is in use already."""
        with self._lock:
            is_outdated = sent != self.bearer
            self._refused.add(sent)
            return is_outdated or any(credential not in self._refused for credential in self._all())

    def _all(self) -> list[str]:
        current = self.current
        return [
            credential for credential in (current.next, current.credential, current.previous) if credential is not None
        ]


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
    try:
        replace_file(directory / CREDENTIAL_FILE, msgspec.json.encode(credential))
    except OSError as exc:
        raise Unavailable(f"The credential cannot be kept in {directory}: {exc}.") from exc


def lock_data_folder(directory: Path) -> IO[str]:
    """Make the folder, and lock it while the returned file is open.

    Not by a library such as filelock: the lock is one call that never waits, and the kernel frees it when the process
    ends. The rest is who holds the folder, which a library does not tell.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Path.open has no opener. A lock file of an older version may be readable by all.
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
    with contextlib.suppress(OSError):  # a full disk: a second agent is then not told the pid
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    return file


def default_data_folder(cluster: str) -> Path:
    """Where an agent stores its data without --data."""
    try:
        return Path.home() / ".local/share/switchyard/agents" / cluster
    except RuntimeError as exc:
        raise Unavailable("There is no home folder for the agent's state.", next_step="Give --data DIR.") from exc
