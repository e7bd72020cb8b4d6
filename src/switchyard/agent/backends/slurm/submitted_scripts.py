"""Records of submissions, one file each, written before sbatch runs so that a job is found after a crash."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.attempt import split_ranges
from switchyard.agent.backends import marker_of
from switchyard.agent.backends.slurm.parse import handle_of
from switchyard.agent.private_files import replace_file
from switchyard.errors import Unavailable
from switchyard.model.poll import Lease


class SubmittedScript(Struct, frozen=True, omit_defaults=True):
    """One sbatch: an attempt, or a range of an array's tasks. The job's name is the marker of the first task."""

    lease: Lease  # of a range: with lo and hi, and the fence of the first task
    base: int = 0  # the index of Slurm's task 0
    account: str = ""  # the account of the job; empty: the agent's
    native: str = ""  # the job's number, once sbatch printed it
    container: str = ""  # podman or docker, if the job runs in a container that may outlive the Slurm job
    forgotten: tuple[int, ...] = ()  # fences of settled tasks, each at most once

    @property
    def name(self) -> str:
        return marker_of(self.lease)

    @property
    def size(self) -> int:
        lo, hi = self.lease.lo, self.lease.hi
        return 1 if lo is None or hi is None else hi - lo + 1

    def leases(self) -> Iterator[Lease]:
        """One lease per task, each with its own fence."""
        return split_ranges([self.lease])

    def lease_under(self, fence: int) -> Lease:
        """The lease of the task with this fence."""
        if self.lease.lo is None:
            return self.lease
        index = self.lease.lo + fence - self.lease.fence
        return replace(self.lease, fence=fence, lo=index, hi=index)

    def fence_of(self, native: str) -> int:
        """The fence of the task with this native id."""
        task = native.partition("_")[2]
        return self.lease.fence + (int(task) + self.base - (self.lease.lo or 0) if task else 0)

    def native_of(self, native: str, lease: Lease) -> str:
        """The native id of a task of the job with this number."""
        return native if lease.lo is None else f"{native}_{lease.lo - self.base}"

    def handle(self, lease: Lease) -> str | None:
        return handle_of(self.native_of(self.native, lease), self.name) if self.native else None


def merge_leases(leases: Iterable[Lease]) -> Lease:
    """Merge the leases of neighbouring tasks into one."""
    ordered = list(leases)
    return replace(ordered[0], hi=ordered[-1].hi)


class SubmissionRegister:
    """All records, in one folder. Used by several threads, each with its own submissions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._handed: dict[str, SubmittedScript] = {}
        self._names: dict[str, str] = {}  # a task's marker → the name of its submission
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with contextlib.suppress(msgspec.DecodeError):  # skip a damaged file
                self._know(msgspec.json.decode(path.read_bytes(), type=SubmittedScript))

    def get(self, name: str) -> SubmittedScript | None:
        return self._handed.get(name)

    def of(self, mark: str) -> tuple[SubmittedScript, Lease] | None:
        """The submission of a task's marker, and the lease of the task."""
        handed = self._handed.get(self._names.get(mark, ""))
        if handed is None:
            return None
        return handed, handed.lease_under(int(mark.rpartition("-")[2]))

    def all(self) -> list[SubmittedScript]:
        with self._lock:
            return list(self._handed.values())

    def write(self, handed: SubmittedScript, *, is_durable: bool = False) -> None:
        """Store a record. `is_durable`: before a submit; later changes can be found out again."""
        path = self._folder / f"{handed.name}.json"
        try:
            replace_file(path, msgspec.json.encode(handed), is_durable=is_durable)
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
            if (
                known is None or known.lease != handed.lease
            ):  # not again for a change of one task: it may have a thousand markers
                self._names.update({marker_of(lease): handed.name for lease in handed.leases()})
