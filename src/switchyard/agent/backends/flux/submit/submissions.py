"""Records of submissions, one file each, written before the submit so that a job is found after a crash."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from switchyard.agent.attempt import split_ranges
from switchyard.agent.backends import marker_of
from switchyard.agent.backends.flux.follow.job_ids import handle_of
from switchyard.agent.private_files import replace_file
from switchyard.errors import Unavailable
from switchyard.model.poll import Lease


class FluxSubmission(Struct, frozen=True, omit_defaults=True):
    """One submit: an attempt, or a range of an array's tasks. Each task is a job of Flux, named by its own marker."""

    lease: Lease  # of a range: with lo and hi, and the fence of the first task
    job_ids: dict[str, int] = {}  # fence of a task → its job id, once Flux told it
    forgotten: tuple[int, ...] = ()  # fences of settled tasks, each at most once

    @property
    def name(self) -> str:
        """The name of its folder."""
        return marker_of(self.lease)

    @property
    def size(self) -> int:
        lo, hi = self.lease.lo, self.lease.hi
        return 1 if lo is None or hi is None else hi - lo + 1

    def leases(self) -> Iterator[Lease]:
        """One lease per task, each with its own fence."""
        return split_ranges([self.lease])

    def handle(self, lease: Lease) -> str | None:
        """The native id of a task; None: it is not known."""
        number = self.job_ids.get(str(lease.fence))
        return None if number is None else handle_of(number, marker_of(lease))


class FluxSubmissionRegister:
    """All records, in one folder. Used by several threads, each with its own submissions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._records: dict[str, FluxSubmission] = {}
        self._tasks: dict[str, tuple[str, Lease]] = {}  # a task's marker → the name of its record, and its lease
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with contextlib.suppress(msgspec.DecodeError):  # skip a damaged file
                self._know(msgspec.json.decode(path.read_bytes(), type=FluxSubmission))

    def of(self, marker: str) -> tuple[FluxSubmission, Lease] | None:
        """The record of a task's marker, and the lease of the task."""
        with self._lock:
            name, lease = self._tasks.get(marker, ("", None))
            return None if lease is None else (self._records[name], lease)

    def all(self) -> list[FluxSubmission]:
        with self._lock:
            return list(self._records.values())

    def write(self, record: FluxSubmission, *, is_durable: bool = False) -> None:
        """Store a record. `is_durable`: before a submit; later changes can be found out again."""
        path = self._folder / f"{record.name}.json"
        try:
            replace_file(path, msgspec.json.encode(record), is_durable=is_durable)
        except OSError as exc:
            raise Unavailable(f"{path} cannot be written: {exc.strerror}.") from exc
        self._know(record)

    def remove(self, record: FluxSubmission) -> None:
        (self._folder / f"{record.name}.json").unlink(missing_ok=True)
        with self._lock:
            self._records.pop(record.name, None)
            for marker in map(marker_of, record.leases()):
                if self._tasks.get(marker, ("",))[0] == record.name:
                    del self._tasks[marker]

    def _know(self, record: FluxSubmission) -> None:
        with self._lock:
            known, self._records[record.name] = self._records.get(record.name), record
            if known is None or known.lease != record.lease:  # not again for a change of one task of a thousand
                self._tasks.update({marker_of(lease): (record.name, lease) for lease in record.leases()})
