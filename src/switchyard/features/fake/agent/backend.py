"""A backend that runs nothing: its jobs only take time, as their environment says. For tests and simulation.

FAKE_RUN_S=2.5      how long it runs (else `sleep N` runs N seconds, anything else 0)
FAKE_DELAY_S=1      how long it waits before it runs
FAKE_EXIT=3         exit code          FAKE_SIGNAL=9      killed by a signal
FAKE_OUTPUT=text    its stdout         FAKE_ERROR=text    its stderr
FAKE_DENY=reason    submit refuses it  FAKE_DOUBT=1       the first submit takes it, and still fails
FAKE_LOSE=1         once it should have ended, the cluster denies knowing it
FAKE_UNKNOWN=text   while it runs, its native state is this unknown word

The cluster does not answer while there is a file `silence` in the backend's folder; the file says why.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.agent.backends import (
    REFRESH_S,
    BackendQuote,
    OptionalCalls,
    OutputPiece,
    Setting,
    Status,
    Trouble,
    WorkFolder,
    marker_of,
)
from switchyard.agent.backends.shared.contact import Contact
from switchyard.agent.backends.shared.work_folders import WorkFolders
from switchyard.agent.loop import clock
from switchyard.agent.loop.need import (
    OccupiedResources,
    ResourceNeed,
    load_of,
    need_of,
    quote_of,
    room_of,
    spec_of,
    total_need,
)
from switchyard.agent.private_files import replace_file
from switchyard.errors import PolicyRefused, Unavailable
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState

TICK_S = 0.02  # how often a watch checks for changes


class _Record(Struct, frozen=True):
    """One fake job on disk."""

    lease: Lease
    submitted_ns: int
    cancelled_ns: int | None = None


class FakeBackend(OptionalCalls):
    kind: ClassVar[str] = "fake"
    is_submit_repeatable: ClassVar[bool] = False  # as in most batch systems, a second submit runs a second job
    has_queue: ClassVar[bool] = False
    finds_graph: ClassVar[bool] = False
    submits_at_once: ClassVar[int] = 1
    jobs_max: ClassVar[int] = 64
    range_max: int = 1

    def __init__(self, setting: Setting, *, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self._setting = setting
        self._jobs = setting.directory / "fake"
        self._jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._work = WorkFolders(setting.files_folder(setting.directory) / "work", is_for_others=False)
        self._now_ns = now_ns
        self._records = {path.stem: _read(path) for path in sorted(self._jobs.glob("*.json"))}
        self._woken = threading.Event()
        self._silence_file = setting.directory / "silence"
        self._contact = Contact("The fake cluster")

    def describe(self) -> Graph:
        return self._setting.known_graph

    def look(self) -> bool:
        return False

    def state(self) -> Load:
        records = list(self._records.values())
        seen = [self._status(record).seen for record in records]
        live = [record for record, state in zip(records, seen, strict=True) if state in _LIVE]
        occupied = total_need(need_of(spec_of(record.lease)) for record in live)
        queued = seen.count(ObservedState.SUBMITTED)
        return load_of(self._setting.known_graph, occupied, running=len(live) - queued, queued=queued)

    def trouble(self) -> Trouble | None:
        with contextlib.suppress(Unavailable), self._contact.asking():
            self._require_answer()
        return self._contact.trouble()

    def quote(self, spec: JobSpec) -> BackendQuote:
        total = room_of(load_of(self._setting.known_graph, ResourceNeed(), running=0, queued=0), less=ResourceNeed())
        records = [record for record in self._records.values() if self._status(record).seen in _LIVE]
        busy = [OccupiedResources(need_of(spec_of(record.lease)), self._left_s(record)) for record in records]
        return quote_of(need_of(spec), total, room_of(self.state(), less=ResourceNeed()), busy)

    def work_folder(self, lease: Lease) -> WorkFolder:
        return self._work.of(lease, None)

    def submit(self, lease: Lease) -> str:
        env = spec_of(lease).env
        if "FAKE_DENY" in env:
            raise PolicyRefused(f"the cluster refused it: {env['FAKE_DENY']}")
        name = marker_of(lease)
        if name in self._records:
            raise AssertionError(f"{name} was submitted twice")
        self._require_answer()
        self._write(name, _Record(lease, self._now_ns()))
        if "FAKE_DOUBT" in env:
            raise Unavailable("no answer from the cluster in time")
        return name

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        return [self.submit(lease) for lease in leases]

    def find(self, marker: str) -> str | None:
        if marker not in self._records:
            return None
        self._require_answer()
        return marker

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        known = self._records
        lost = Status(seen=ObservedState.LOST, reason="the cluster does not know this job")
        return {name: self._status(known[name]) if name in known else lost for name in native_ids}

    def cancel(self, native_ids: Collection[str]) -> None:
        for native_id in native_ids:
            record = self._records.get(native_id)
            if record is not None and self._status(record).seen in _LIVE:
                self._write(native_id, replace(record, cancelled_ns=self._now_ns()))
                self._woken.set()

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        record = self._records.get(native_id)
        key = {"stdout": "FAKE_OUTPUT", "stderr": "FAKE_ERROR"}[stream]
        data = spec_of(record.lease).env.get(key, "").encode() if record else b""
        return OutputPiece(data[offset : offset + size], len(data))

    def refresh(self) -> float:
        return REFRESH_S

    def watch(self, timeout_s: float) -> None:
        is_busy = any(self._status(record).seen in _LIVE for record in self._records.values())
        self._woken.wait(min(timeout_s, TICK_S) if is_busy else timeout_s)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def held(self) -> list[Lease]:
        return [record.lease for record in self._records.values()]

    def forget(self, native_id: str) -> None:
        self._records = {name: record for name, record in self._records.items() if name != native_id}
        (self._jobs / f"{native_id}.json").unlink(missing_ok=True)

    def close(self) -> None:
        self._woken.set()

    def _require_answer(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            raise Unavailable(self._silence_file.read_text().strip() or "no answer from the cluster in time")

    def _status(self, record: _Record) -> Status:
        env = spec_of(record.lease).env
        begin_ns = record.submitted_ns + int(float(env.get("FAKE_DELAY_S", "0")) * 1e9)
        end_ns = begin_ns + int(_run_s(spec_of(record.lease)) * 1e9)
        now_ns = self._now_ns()
        if record.cancelled_ns is not None and record.cancelled_ns < end_ns:
            return Status(
                seen=ObservedState.CANCELLED, reason="cancelled", ago_us=(now_ns - record.cancelled_ns) // 1000
            )
        if now_ns < begin_ns:
            return Status(seen=ObservedState.SUBMITTED, text="PENDING", ago_us=(now_ns - record.submitted_ns) // 1000)
        if now_ns < end_ns and "FAKE_UNKNOWN" in env:
            return Status(seen=ObservedState.UNKNOWN, text=env["FAKE_UNKNOWN"])
        if now_ns < end_ns:
            return Status(seen=ObservedState.RUNNING, text="RUNNING", ago_us=(now_ns - begin_ns) // 1000)
        if "FAKE_LOSE" in env:
            return Status(seen=ObservedState.LOST, reason="the cluster does not know this job")
        return _end_status(env, ago_us=(now_ns - end_ns) // 1000, began_ago_us=(now_ns - begin_ns) // 1000)

    def _left_s(self, record: _Record) -> float:
        spec = spec_of(record.lease)
        end_s = record.submitted_ns / 1e9 + float(spec.env.get("FAKE_DELAY_S", "0")) + _run_s(spec)
        return max(0.0, end_s - self._now_ns() / 1e9)

    def _write(self, name: str, record: _Record) -> None:
        replace_file(self._jobs / f"{name}.json", msgspec.json.encode(record), is_durable=False)
        self._records = {**self._records, name: record}  # replaced, not changed, since other threads read it


_LIVE = (ObservedState.SUBMITTED, ObservedState.RUNNING, ObservedState.UNKNOWN)


def _read(path: Path) -> _Record:
    return msgspec.json.decode(path.read_bytes(), type=_Record)


def _run_s(spec: JobSpec) -> float:
    if "FAKE_RUN_S" in spec.env:
        return float(spec.env["FAKE_RUN_S"])
    return float(spec.command[1]) if spec.command[0] == "sleep" and len(spec.command) > 1 else 0.0


def _end_status(env: dict[str, str], *, ago_us: int, began_ago_us: int) -> Status:
    code, number = int(env.get("FAKE_EXIT", "0")), env.get("FAKE_SIGNAL")
    if number is not None:
        return Status(
            seen=ObservedState.FAILED,
            signal=int(number),
            reason=f"killed by signal {number}",
            ago_us=ago_us,
            began_ago_us=began_ago_us,
        )
    return Status(
        seen=ObservedState.FAILED if code else ObservedState.SUCCEEDED,
        exit_code=code,
        reason=f"exit code {code}" if code else "",
        ago_us=ago_us,
        began_ago_us=began_ago_us,
    )
