"""One local job's directory as the agent reads and writes it. What the files mean is told in supervisor.py."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec

from switchyard.agent.backends import Piece, supervisor
from switchyard.agent.clock import Stamp, boot_id
from switchyard.model.poll import Lease

EXIT_BYTES_MAX = 64 * 1024  # an exit file is under 4 KiB; anything larger is not one
NEVER = 0  # the pid in a claim that the agent made, so that nobody starts the job any more


@dataclass(frozen=True, slots=True)
class Claim:
    """The one supervisor of a job: pid, start time and boot make it an identity, however pids are reused."""

    pid: int
    born: str
    boot: str

    def lives(self) -> bool:
        if self.pid == NEVER or self.boot != boot_id():
            return False
        fields = supervisor.stat_fields(self.pid)
        return bool(fields) and fields[19] == self.born and fields[0] not in "ZX"

    def send(self, number: int) -> bool:
        """Signal that very process, never a later one with its pid. False: it is gone."""
        if self.pid == NEVER:
            return False
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.lives():
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


@dataclass(frozen=True, slots=True)
class Exit:
    cause: str  # exit · start · time-limit · cancel · stopped
    code: int | None
    signal: int | None
    reason: str
    at: Stamp


@dataclass(frozen=True, slots=True)
class JobDir:
    path: Path

    def write_start(self, lease: Lease, words: list[bytes]) -> None:
        (self.path / "work").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._put("lease.json", msgspec.json.encode(lease))
        self._put("start", b"\0".join([*words, b"end="]))

    def lease(self) -> Lease | None:
        try:
            return msgspec.json.decode((self.path / "lease.json").read_bytes(), type=Lease)
        except (OSError, msgspec.DecodeError):
            return None

    def claim(self) -> Claim | None:
        try:
            pid, born, boot = (self.path / "claim").read_text().split()
            return Claim(int(pid), born, boot)
        except FileNotFoundError:
            return None
        except ValueError:
            # The machine went down as it was written: it was claimed, and that is all we know.
            return Claim(NEVER + 1, "", "")

    def claim_never(self) -> bool:
        """Take the claim so that the job never starts. False: a supervisor was first."""
        mine = self.path / "claim.agent"
        mine.write_text(f"{NEVER} 0 {boot_id()}\n")
        try:
            os.link(mine, self.path / "claim")
        except FileExistsError:
            return False
        finally:
            mine.unlink(missing_ok=True)
        return True

    def started(self) -> Stamp | None:
        """When the command began to run."""
        try:
            words = (self.path / "started").read_text().split()
        except FileNotFoundError:
            return None
        claim = self.claim()
        return Stamp(claim.boot, int(words[2])) if claim and len(words) == 3 else None

    def leader(self) -> Claim | None:
        """The command's first process, which leads its session."""
        claim = self.claim()
        try:
            words = (self.path / "started").read_text().split()
        except FileNotFoundError:
            return None
        return Claim(int(words[0]), words[1], claim.boot) if claim and len(words) == 3 else None

    def exit(self) -> Exit | None:
        try:
            with (self.path / "exit").open("rb") as file:
                text = file.read(EXIT_BYTES_MAX).decode(errors="replace")
        except FileNotFoundError:
            return None
        facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return Exit(
            cause=facts.get("cause", ""),
            code=_number(facts.get("code")),
            signal=_number(facts.get("signal")),
            reason=facts.get("reason", ""),
            at=Stamp(facts.get("boot", ""), _number(facts.get("at_ns")) or 0),
        )

    def read(self, stream: str, *, offset: int, size: int) -> Piece:
        try:
            with (self.path / stream).open("rb") as file:
                file.seek(offset)
                return Piece(file.read(size), os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return Piece(b"", 0)

    def end_strays(self, lease: Lease | None) -> int:
        """KILL what is left of the job when its supervisor is gone. Returns how many were found."""
        leader = self.leader()
        found = _strays(lease, leader)
        for pid, born in found:
            supervisor.kill_same(pid, born)
        return len(found)

    def _put(self, name: str, data: bytes) -> None:
        new = self.path / f"{name}.new"
        new.write_bytes(data)
        new.rename(self.path / name)


def _strays(lease: Lease | None, leader: Claim | None) -> list[tuple[int, str]]:
    """By the marker in the environment, which survives setsid; and the session, while its leader is the one we know."""
    session = str(leader.pid) if leader is not None and leader.lives() else ""
    marks = [f"SWITCHYARD_JOB_ID={lease.job}", f"SWITCHYARD_FENCE={lease.fence}"] if lease is not None else []
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        fields = supervisor.stat_fields(pid)
        if not fields or fields[0] in "ZX":
            continue
        if (session and fields[3] == session) or (marks and _has_marks(pid, marks)):
            found.append((pid, fields[19]))
    return found


def _has_marks(pid: int, marks: list[str]) -> bool:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(mark.encode() in items for mark in marks)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
