"""The directory of a local job, as the agent reads and writes it. supervisor.py describes the files.

A job that runs under the agent's account can change everything here. So files are opened without following links or
waiting for pipes (`open_untrusted`), and written as new files. A seal proves that a supervisor, not a job, wrote an
exit file.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from switchyard.agent.backends import OutputPiece, marker_of
from switchyard.agent.loop.clock import Stamp, boot_id
from switchyard.agent.private_files import replace_file
from switchyard.agent.site.accounts import LocalAccount, open_untrusted, share_folder
from switchyard.errors import Unavailable
from switchyard.features.local.agent import proctable
from switchyard.model.cluster.poll import Lease

JOB_FILE_BYTES_MAX = 64 * 1024  # an exit file is under 4 KiB; anything larger is not one
LEASE_BYTES_MAX = 64 * 2**20  # the protocol bounds leases; this protects the agent's memory
# Errors of opening what is no plain file: a link, a folder, a socket; or from `open_untrusted` itself.
NOT_PLAIN_FILE_ERRNOS = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EPERM)
DIGITS_MAX = 20  # of a 64-bit number
STARTED_WORDS = 5  # of the file `started`; older supervisors wrote the first three
NEVER_PID = 0  # the pid in a claim of the agent, which keeps the job from starting
KEY_FILE = "supervisor.key"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class SupervisorClaim:
    """The one supervisor of a job. Pid, start time and boot identify it although pids are reused."""

    pid: int
    born: str
    boot: str

    def lives(self) -> bool:
        return self._state() not in ("", "Z", "X")

    def is_stopped(self) -> bool:
        """Whether it was sent SIGSTOP or is traced."""
        return self._state() in ("T", "t")

    def _state(self) -> str:
        if self.pid == NEVER_PID or self.boot != boot_id():
            return ""
        fields = proctable.stat_fields(self.pid)
        return fields[0] if fields and fields[19] == self.born else ""

    def send(self, number: int) -> bool:
        """Signal this process, never a later one with the same pid. False: it is gone."""
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
    # exit · start (the command cannot be run) · group (its control group could not be entered) · setup (its process
    # could not be made ready for the command) · time-limit · output-limit · cancel · stopped · agent (it ended)
    cause: str
    code: int | None
    signal: int | None
    reason: str
    left: int  # processes that did not die
    at: Stamp
    memory_kills: str = ""  # where the kernel ended a process for lack of memory meanwhile: group · machine
    container: str | None = None  # what its runtime says of the container's end; None: it ran in no container
    is_container_left: bool = False  # the container was not removed


@dataclass(frozen=True, slots=True)
class JobDir:
    path: Path

    @property
    def work(self) -> Path:
        """The command's working folder and home. All other files in the directory are the agent's."""
        return self.path / "work"

    def write_start(
        self,
        lease: Lease,
        words: list[bytes],
        account: LocalAccount | None = None,
        *,
        variables: tuple[str, bytes] | None = None,
        gpus: Sequence[int] = (),
    ) -> None:
        """`account`: the owner of the job's folder, if not the agent. It can pass through the directory.

        `variables`: name and content of the file with a container's variables. `gpus`: what it holds, by index.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.work.mkdir(mode=0o700, exist_ok=True)
        if account is not None:
            share_folder(self.work, account)
            self.path.chmod(0o711)
        self._put("lease.json", msgspec.json.encode(lease))
        if variables is not None:
            self._put(*variables)
        if gpus:
            self._put("gpus", " ".join(map(str, gpus)).encode())
        self._put("start", b"\0".join([*words, b"end="]))

    def lease(self) -> Lease | None:
        try:
            lease = msgspec.json.decode(self._get("lease.json", LEASE_BYTES_MAX) or b"", type=Lease)
        except (OSError, msgspec.DecodeError):
            return None
        return lease if marker_of(lease) == self.path.name else None  # else a job wrote the file

    def gpus(self) -> tuple[int, ...]:
        """The GPUs that it holds, by index."""
        return tuple(
            int(word) for word in (self._get("gpus") or b"").decode(errors="replace").split() if word.isdecimal()
        )

    def claim(self) -> SupervisorClaim | None:
        content = self._get("claim")
        if content is None:
            return None
        try:
            pid, born, boot = content.decode().split()
            is_supervisor = int(pid) == NEVER_PID or self.path.name.encode() in proctable.command_line(int(pid))
            return SupervisorClaim(int(pid), born if is_supervisor else "", boot)  # else no living process is meant
        except ValueError:
            # The machine crashed during the write: the job was claimed, and no more is known.
            return SupervisorClaim(NEVER_PID + 1, "", "")

    def claim_never(self) -> bool:
        """Claim the job so that it never starts. False: a supervisor was first."""
        own_claim = self.path / "claim.agent"
        self._create(own_claim, f"{NEVER_PID} 0 {boot_id()}\n".encode())
        try:
            os.link(own_claim, self.path / "claim")
        except FileExistsError:
            return False
        finally:
            own_claim.unlink(missing_ok=True)
        return True

    def has_begun(self) -> bool:
        """Whether a supervisor began here, although its claim is gone."""
        return any(os.path.lexists(self.path / name) for name in ("claim", "started", "exit"))

    def started(self, claim: SupervisorClaim | None = None) -> Stamp | None:
        """When the command began. `claim`: as read before, since a job may have removed it."""
        words, claim = self._started(), claim or self.claim()
        return Stamp(claim.boot, int(words[2])) if claim and words else None

    def exit(self, *, seal: str = "") -> ExitRecord | None:
        """How the job ended. With a seal: only if the supervisor wrote the file."""
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
            memory_kills=facts.get("memory_kills", ""),
            container=facts.get("container"),
            is_container_left=facts.get("container_left") == "1",
        )

    def read(self, stream: str, *, offset: int, size: int) -> OutputPiece:
        """Read output, from the file that the supervisor opened and not from a file that the job put in its place."""
        words = self._started()
        if not words and not os.path.lexists(self.path / "exit"):
            return OutputPiece(b"", 0)  # the command may run, but it is not yet known which file is its output
        try:
            with open_untrusted(self.path / stream) as file:
                status = os.fstat(file.fileno())
                if len(words) == STARTED_WORDS and int(words[-2 if stream == "stdout" else -1]) != status.st_ino:
                    return OutputPiece(b"", 0)
                file.seek(offset)
                return OutputPiece(file.read(size), status.st_size)
        except FileNotFoundError:
            return OutputPiece(b"", 0)
        except OSError as exc:
            if exc.errno in NOT_PLAIN_FILE_ERRNOS:
                return OutputPiece(b"", 0)
            raise

    def _started(self) -> list[str]:
        """The words of the file `started`; empty if it is missing or not by a supervisor."""
        words = (self._get("started") or b"").decode(errors="replace").split()
        is_whole = len(words) in (3, STARTED_WORDS) and all(
            word.isdecimal() and len(word) <= DIGITS_MAX for word in words
        )
        return words if is_whole else []

    def _get(self, name: str, bytes_max: int = JOB_FILE_BYTES_MAX) -> bytes | None:
        """The content of a file; None: it is missing, or a job put something else in its place."""
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


class Seals:
    """The seal of each attempt, derived from one key in the agent's data folder.

    Attempts older than the key have none; their names are stored with the key.
    """

    def __init__(self, directory: Path, *, begun: Iterable[str]) -> None:
        """`begun`: names of existing attempts; used only when there is no key yet."""
        try:
            words = _read_key(directory / KEY_FILE) or _make_key(directory / KEY_FILE, begun)
        except OSError as exc:
            raise Unavailable(f"The key of the supervisors cannot be kept in {directory}: {exc}.") from exc
        self._key = words[0].encode()
        self._unsealed = frozenset(words[1:])

    def of(self, name: str) -> str:
        """The seal of an attempt; empty: it is older than the key."""
        return "" if name in self._unsealed else hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()


def _read_key(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _make_key(file: Path, begun: Iterable[str]) -> list[str]:
    words = [secrets.token_hex(KEY_BYTES), *sorted(begun)]
    replace_file(file, ("\n".join(words) + "\n").encode())
    return words
