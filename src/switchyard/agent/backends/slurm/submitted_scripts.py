"""What is kept of each hand-over, so that it is found again after a crash: a file each, written before sbatch runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.slurm.parse import handle_of
from switchyard.errors import Unavailable
from switchyard.model.poll import Lease


class SubmittedScript(Struct, frozen=True, omit_defaults=True):
    """One sbatch: an attempt, or a range of an array's tasks. Its name at the cluster is the marker of the first."""

    lease: Lease  # of a range: with its lo and hi, under the fence of the first
    base: int = 0  # the index of the task that Slurm calls 0
    account: str = ""  # the local account it runs under, if that is not the agent's own
    native: str = ""  # the job's number, once sbatch has said it
    forgotten: tuple[int, ...] = ()  # the fences of tasks that are settled and done with: each once, if said again

    @property
    def name(self) -> str:
        return marker_of(self.lease)

    @property
    def size(self) -> int:
        lo, hi = self.lease.lo, self.lease.hi
        return 1 if lo is None or hi is None else hi - lo + 1

    def leases(self) -> Iterator[Lease]:
        """One per task, each under its own fence."""
        if self.lease.lo is None:
            yield self.lease
            return
        for step in range(self.size):
            yield self.lease_under(self.lease.fence + step)

    def lease_under(self, fence: int) -> Lease:
        """Of the task with this fence."""
        if self.lease.lo is None:
            return self.lease
        index = self.lease.lo + fence - self.lease.fence
        return replace(self.lease, fence=fence, lo=index, hi=index)

    def fence_of(self, native: str) -> int:
        """Of the task that Slurm calls so."""
        task = native.partition("_")[2]
        return self.lease.fence + (int(task) + self.base - (self.lease.lo or 0) if task else 0)

    def native_of(self, native: str, lease: Lease) -> str:
        """What Slurm calls this task of the job with that number."""
        return native if lease.lo is None else f"{native}_{lease.lo - self.base}"

    def handle(self, lease: Lease) -> str | None:
        return handle_of(self.native_of(self.native, lease), self.name) if self.native else None


def merge_leases(leases: Iterable[Lease]) -> Lease:
    """Neighbouring tasks as one lease."""
    each = list(leases)
    return replace(each[0], hi=each[-1].hi)


class SubmissionRegister:
    """All hand-overs in one folder. Used by several threads, each with hand-overs of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._handed: dict[str, SubmittedScript] = {}
        self._names: dict[str, str] = {}  # a task's marker → the name it went under
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with contextlib.suppress(msgspec.DecodeError):  # half a file is no hand-over: it is renamed when whole
                self._know(msgspec.json.decode(path.read_bytes(), type=SubmittedScript))

    def get(self, name: str) -> SubmittedScript | None:
        return self._handed.get(name)

    def of(self, mark: str) -> tuple[SubmittedScript, Lease] | None:
        """The hand-over that a task's marker belongs to, and its own lease."""
        handed = self._handed.get(self._names.get(mark, ""))
        if handed is None:
            return None
        return handed, handed.lease_under(int(mark.rpartition("-")[2]))

    def all(self) -> list[SubmittedScript]:
        with self._lock:
            return list(self._handed.values())

    def write(self, handed: SubmittedScript, *, is_durable: bool = False) -> None:
        """Durable before a submit, which must not outlive what is known of it; later words can be found out again."""
        path = self._folder / f"{handed.name}.json"
        new = path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(msgspec.json.encode(handed))
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            new.rename(path)
            if is_durable:
                _sync_folder(self._folder)
        except OSError as exc:
            raise Unavailable(f"{path} cannot be written: {exc.strerror}.") from exc
        self._know(handed)

    def remove(self, handed: SubmittedScript) -> None:
        (self._folder / f"{handed.name}.json").unlink(missing_ok=True)
        with self._lock:
            self._handed.pop(handed.name, None)
            for mark in map(marker_of, handed.leases()):
                if self._names.get(mark) == handed.name:
                    del self._names[mark]

    def _know(self, handed: SubmittedScript) -> None:
        with self._lock:
            known, self._handed[handed.name] = self._handed.get(handed.name), handed
            if known is None or known.lease != handed.lease:  # else a thousand markers for a word about one task
                self._names.update({marker_of(lease): handed.name for lease in handed.leases()})


def _sync_folder(folder: Path) -> None:
    """A file's new name is durable only when its folder is."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
