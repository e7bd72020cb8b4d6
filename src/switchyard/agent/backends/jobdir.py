"""One local job's directory as the agent reads and writes it. What the files mean is told in supervisor.py.

A job that runs under the agent's own account can change everything here. So every file is opened without following
links or waiting for pipes (`open_theirs`), and made anew where it is written.
"""

from __future__ import annotations

import errno
import hmac
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec

from switchyard.agent.accounts import LocalAccount, open_untrusted, share_folder
from switchyard.agent.backends import OutputPiece, marker_of, proctable
from switchyard.agent.clock import Stamp, boot_id
from switchyard.model.poll import Lease

FILE_BYTES_MAX = 64 * 1024  # an exit file is under 4 KiB; anything larger is not one
LEASE_BYTES_MAX = 64 * 2**20  # a lease is bounded by the protocol; this only keeps the agent's memory
# What opening says of something that is no plain file: a link, a folder, a socket, or `open_theirs` itself.
NOT_PLAIN_FILE_ERRNOS = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EPERM)
DIGITS_MAX = 20  # of a 64-bit number
STARTED_WORDS = 5  # of the file `started`; older supervisors wrote the first three
NEVER_PID = 0  # the pid in a claim that the agent made, so that nobody starts the job any more


@dataclass(frozen=True, slots=True)
class SupervisorClaim:
    """The one supervisor of a job: pid, start time and boot make it an identity, however pids are reused."""

    pid: int
    born: str
    boot: str

    def lives(self) -> bool:
        return self._state() not in ("", "Z", "X")

    def is_stopped(self) -> bool:
        """Somebody sent it SIGSTOP, or traces it."""
        return self._state() in ("T", "t")

    def _state(self) -> str:
        if self.pid == NEVER_PID or self.boot != boot_id():
            return ""
        fields = proctable.stat_fields(self.pid)
        return fields[0] if fields and fields[19] == self.born else ""

    def send(self, number: int) -> bool:
        """Signal that very process, never a later one with its pid. False: it is gone."""
        if not self.lives():
            return False
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.lives():
                return False
            signal.pidfd_send_signal(fd, number)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


@dataclass(frozen=True, slots=True)
class ExitRecord:
    cause: str  # exit · start · group (its control group could not be entered) · time-limit · cancel · stopped
    code: int | None
    signal: int | None
    reason: str
    left: int  # processes that did not die
    at: Stamp


@dataclass(frozen=True, slots=True)
class JobDir:
    path: Path

    @property
    def work(self) -> Path:
        """Where the command runs, and its home. All else in the directory is the agent's."""
        return self.path / "work"

    def write_start(self, lease: Lease, words: list[bytes], account: LocalAccount | None = None) -> None:
        """`account`: whose the job's own folder is, if not the agent's. The account can pass through the directory."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.work.mkdir(mode=0o700, exist_ok=True)
        if account is not None:
            share_folder(self.work, account)
            self.path.chmod(0o711)
        self._put("lease.json", msgspec.json.encode(lease))
        self._put("start", b"\0".join([*words, b"end="]))

    def lease(self) -> Lease | None:
        try:
            lease = msgspec.json.decode(self._get("lease.json", LEASE_BYTES_MAX) or b"", type=Lease)
        except (OSError, msgspec.DecodeError):
            return None
        return lease if marker_of(lease) == self.path.name else None  # else a job has put it there

    def claim(self) -> SupervisorClaim | None:
        found = self._get("claim")
        if found is None:
            return None
        try:
            pid, born, boot = found.decode().split()
            is_supervisor = int(pid) == NEVER_PID or self.path.name.encode() in proctable.command_line(int(pid))
            return SupervisorClaim(int(pid), born if is_supervisor else "", boot)  # else nobody that lives is meant
        except ValueError:
            # The machine went down as it was written: it was claimed, and that is all we know.
            return SupervisorClaim(NEVER_PID + 1, "", "")

    def claim_never(self) -> bool:
        """Take the claim so that the job never starts. False: a supervisor was first."""
        mine = self.path / "claim.agent"
        self._create(mine, f"{NEVER_PID} 0 {boot_id()}\n".encode())
        try:
            os.link(mine, self.path / "claim")
        except FileExistsError:
            return False
        finally:
            mine.unlink(missing_ok=True)
        return True

    def has_begun(self) -> bool:
        """Whether a supervisor was here, though its claim is gone."""
        return any(os.path.lexists(self.path / name) for name in ("claim", "started", "exit"))

    def started(self, claim: SupervisorClaim | None = None) -> Stamp | None:
        """When the command began to run. `claim`: as it was read before; a job may have removed it since."""
        words, claim = self._started(), claim or self.claim()
        return Stamp(claim.boot, int(words[2])) if claim and words else None

    def exit(self, *, seal: str = "") -> ExitRecord | None:
        """How it ended. With a seal: only if the supervisor wrote it."""
        text = (self._get("exit") or b"").decode(errors="replace")
        facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if not facts or (seal and not hmac.compare_digest(facts.get("seal", "").encode(), seal.encode())):
            return None
        return ExitRecord(
            cause=facts.get("cause", ""),
            code=_number(facts.get("code")),
            signal=_number(facts.get("signal")),
            reason=facts.get("reason", ""),
            left=_number(facts.get("left")) or 0,
            at=Stamp(facts.get("boot", ""), _number(facts.get("at_ns")) or 0),
        )

    def read(self, stream: str, *, offset: int, size: int) -> OutputPiece:
        """Some of the output: of the file that the supervisor opened, not of what a job put into its place."""
        try:
            with open_untrusted(self.path / stream) as file:
                found = os.fstat(file.fileno())
                words = self._started()
                if len(words) == STARTED_WORDS and int(words[-2 if stream == "stdout" else -1]) != found.st_ino:
                    return OutputPiece(b"", 0)
                file.seek(offset)
                return OutputPiece(file.read(size), found.st_size)
        except FileNotFoundError:
            return OutputPiece(b"", 0)
        except OSError as exc:
            if exc.errno in NOT_PLAIN_FILE_ERRNOS:
                return OutputPiece(b"", 0)
            raise

    def _started(self) -> list[str]:
        """The words of that file; none: there is no such file, or none that a supervisor wrote."""
        words = (self._get("started") or b"").decode(errors="replace").split()
        is_whole = len(words) in (3, STARTED_WORDS) and all(
            word.isdecimal() and len(word) <= DIGITS_MAX for word in words
        )
        return words if is_whole else []

    def _get(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> bytes | None:
        """What a file holds; none: it is not there, or a job put something else into its place."""
        try:
            with open_untrusted(self.path / name, is_linked_ok=True) as file:
                return file.read(bytes_max)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            if exc.errno in NOT_PLAIN_FILE_ERRNOS:
                return None
            raise

    def _put(self, name: str, data: bytes) -> None:
        new = self.path / f"{name}.new"
        self._create(new, data)
        new.rename(self.path / name)

    def _create(self, path: Path, data: bytes) -> None:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
