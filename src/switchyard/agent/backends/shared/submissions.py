"""Records of submissions to a scheduler, one file each, written before the submit so that a job is found after a crash.

Slurm and Flux use them. Kubernetes has records of its own, which keep more than the cluster does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.journal.attempt import split_ranges
from switchyard.agent.private_files import replace_file
from switchyard.errors import Unavailable
from switchyard.model.cluster.poll import Lease


class Submission(Struct, frozen=True, omit_defaults=True):
    """One submit: an attempt, or a range of an array's tasks. Each backend adds what its scheduler answered."""

    lease: Lease  # of a range: with lo and hi, and the fence of the first task
    forgotten: tuple[int, ...] = ()  # fences of settled tasks, each at most once

    @property
    def name(self) -> str:
        """The name of the record and of its file: the marker of the first task."""
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


Record = TypeVar("Record", bound=Submission)


class SubmissionRegister(Generic[Record]):
    """All records of one kind, in one folder. Used by several threads, each with its own submissions."""

    def __init__(self, folder: Path, kind: type[Record]) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}
        self._names: dict[str, str] = {}  # a task's marker → the name of its record
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with contextlib.suppress(msgspec.DecodeError):  # skip a damaged file
                self._know(msgspec.json.decode(path.read_bytes(), type=kind))

    def get(self, name: str) -> Record | None:
        with self._lock:
            return self._records.get(name)

    def of(self, marker: str) -> tuple[Record, Lease] | None:
        """The record of a task's marker, and the lease of the task."""
        with self._lock:
            record = self._records.get(self._names.get(marker, ""))
        return None if record is None else (record, record.lease_under(int(marker.rpartition("-")[2])))

    def all(self) -> list[Record]:
        with self._lock:
            return list(self._records.values())

    def unsettled(self) -> list[Lease]:
        """One lease for each task that is not settled yet."""
        return [lease for record in self.all() for lease in record.leases() if lease.fence not in record.forgotten]

    def settle(self, record: Record, fences: Iterable[int]) -> bool:
        """Record that tasks are settled. True: all tasks of the record are; the caller removes it."""
        forgotten = tuple({*record.forgotten, *fences})
        if len(forgotten) == record.size:
            return True
        self.write(replace(record, forgotten=forgotten))
        return False

    def write(self, record: Record, *, is_durable: bool = False) -> None:
        """Store a record. `is_durable`: before a submit; later changes can be found out again."""
        path = self._folder / f"{record.name}.json"
        try:
            replace_file(path, msgspec.json.encode(record), is_durable=is_durable)
        except OSError as exc:
            raise Unavailable(f"{path} cannot be written: {exc.strerror}.") from exc
        self._know(record)

    def remove(self, record: Record) -> None:
        (self._folder / f"{record.name}.json").unlink(missing_ok=True)
        with self._lock:
            self._records.pop(record.name, None)
            for marker in map(marker_of, record.leases()):
                if self._names.get(marker) == record.name:
                    del self._names[marker]

    def _know(self, record: Record) -> None:
        with self._lock:
            known, self._records[record.name] = self._records.get(record.name), record
            if known is None or known.lease != record.lease:  # not again for a change of one task of a thousand
                live = (lease for lease in record.leases() if lease.fence not in record.forgotten)
                self._names.update({marker_of(lease): record.name for lease in live})
