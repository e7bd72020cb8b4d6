"""Runs jobs as processes of this machine, each under its own supervisor. It knows nothing of servers or journals."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from switchyard.agent.backends import (
    REFRESH_S,
    BackendQuote,
    OutputPiece,
    Setting,
    Status,
    local_status,
    marker_of,
    proctable,
    supervisor,
)
from switchyard.agent.backends.containment import Containments
from switchyard.agent.backends.jobdir import NEVER_PID, ExitRecord, JobDir, SupervisorClaim
from switchyard.agent.backends.launch import (
    account_for,
    compile_supervisor,
    load_job_accounts,
    spawn_supervisor,
    start_file_words,
)
from switchyard.agent.backends.seals import Seals
from switchyard.agent.clock import Stamp, boot_id
from switchyard.agent.log import line
from switchyard.agent.need import (
    ResourceNeed,
    estimate_occupied,
    load_of,
    need_of,
    quote_of,
    room_of,
    spec_of,
    total_need,
)
from switchyard.errors import Unavailable, YardError
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.job import JobSpec
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Lease
from switchyard.model.quantity import parse_duration_s

RESPAWN_S = 1.0  # between tries to start a supervisor, e.g. while the disk is full
SPAWN_TRIES_MAX = 5  # of a supervisor that dies before it claims; a full disk does not count
SCAN_S = 0.05  # how often to look where the kernel has no pidfd to wait on
STRAYS_S_MAX = 2.0  # to see the processes of a dead supervisor gone
STRAYS_RETRY_S = 5.0  # until the next try, if that was not enough: they hang in the kernel
# After a cancel or a time limit: how long the supervisor has before the agent ends it and the job by itself. It gives
# the job GRACE_S; longer takes only a supervisor that was stopped, or processes that hang in the kernel.
CANCEL_S_MAX = supervisor.GRACE_S + 5.0
LIMIT_S_MAX = supervisor.GRACE_S + 15.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _LiveAttempt:
    """One attempt that takes up room here: submitted, and not seen to have ended."""

    need: ResourceNeed
    process: subprocess.Popen[bytes] | None = None
    fd: int = -1  # readable when something happened: the supervisor's pipe, or its pidfd after a restart
    tries: int = 0
    spawned_at: float = 0.0
    limit_s: float | None = None
    since: float = field(default_factory=time.monotonic)  # when it began to take up room
    claim: SupervisorClaim | None = None  # as it was first seen: a job under our account could change the file
    is_told: bool = False  # its supervisor said that the command runs
    cancelled_at: float | None = None  # when its end was first asked for
    end_at: float = 0.0  # not before: another try to end processes that did not die

    def overdue(self) -> str:
        """Why its supervisor should have ended it by now; empty: it has time."""
        now = time.monotonic()
        if self.cancelled_at is not None and now - self.cancelled_at > CANCEL_S_MAX:
            return "cancel"
        is_late = self.limit_s is not None and now - self.since > self.limit_s + LIMIT_S_MAX
        return "time-limit" if is_late and self.claim is not None else ""


class LocalBackend:
    kind: ClassVar[str] = "local"
    is_submit_repeatable: ClassVar[bool] = True  # the claim in the job's directory lets one supervisor through
    has_queue: ClassVar[bool] = False
    finds_graph: ClassVar[bool] = False
    submits_at_once: ClassVar[int] = 1
    jobs_max: ClassVar[int] = 64
    range_max: int = 1

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._graph = setting.known_graph
        self._jobs = setting.directory / "jobs"
        self._jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._accounts = load_job_accounts(setting)
        self._program = compile_supervisor(setting.directory)
        self._seals = Seals(setting.directory, begun=[path.name for path in self._jobs.iterdir()])
        self._containments = Containments(setting.directory, setting.site.local.containment)
        log.info(
            line("containment", way="cgroup" if self._containments.base else "process", at=self._containments.base)
        )
        self._lock = threading.Lock()  # over _live: the polls ask for the state while the runner submits
        self._live: dict[str, _LiveAttempt] = {}
        self._ended: list[subprocess.Popen[bytes]] = []  # still to be reaped
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._recover()

    def describe(self) -> Graph:
        return self._graph

    def look(self) -> bool:
        if self._setting.look is None:
            return False
        before, self._graph = self._graph, self._setting.look()
        return self._graph != before

    def state(self) -> Load:
        with self._lock:
            taken = total_need(live.need for live in self._live.values())
            return load_of(self._graph, taken, running=len(self._live), queued=0)

    def quote(self, spec: JobSpec) -> BackendQuote:
        whole = room_of(load_of(self._graph, ResourceNeed(), running=0, queued=0), less=ResourceNeed())
        now = time.monotonic()
        with self._lock:
            busy = [
                estimate_occupied(live.need, ran_s=now - live.since, limit_s=live.limit_s)
                for live in self._live.values()
            ]
        free = room_of(
            load_of(self._graph, total_need(each.need for each in busy), running=0, queued=0), less=ResourceNeed()
        )
        return quote_of(need_of(spec), whole, free, busy)

    def submit(self, lease: Lease) -> str:
        name = marker_of(lease)
        job = JobDir(self._jobs / name)
        with self._lock:
            live = self._live.setdefault(name, _live_from_lease(lease))
        if live.process is not None and live.process.poll() is None:
            return name
        try:
            if live.claim is None and not job.has_begun() and not self._containments.of(name).is_begun():
                account = account_for(lease, self._setting, self._accounts)
                words = start_file_words(lease, job.work, self._setting, account, self._containments.words(name))
                job.write_start(lease, words, account)
                self._spawn(name, live)
        except YardError:
            self._drop(name)
            raise
        except OSError as exc:
            self._drop(name)
            raise Unavailable(f"The job's directory {job.path} cannot be written: {exc}.") from exc
        return name

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        return [self.submit(lease) for lease in leases]

    def find(self, marker: str) -> str | None:
        is_here = (self._jobs / marker).is_dir() or self._containments.of(marker).is_begun()
        return marker if is_here else None

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        return {name: self._status_or_unknown(name) for name in native_ids}

    def cancel(self, native_ids: Collection[str]) -> None:
        problem = ""
        for native_id in native_ids:
            try:
                self._cancel(native_id, JobDir(self._jobs / native_id))
            except OSError as exc:
                problem = f"{self._jobs / native_id} cannot be written: {exc}."
        if problem:
            raise Unavailable(problem)

    def _cancel(self, name: str, job: JobDir) -> None:
        live = self._live_or_new(name, job)
        if live.cancelled_at is None:
            live.cancelled_at = time.monotonic()
        claim = live.claim or job.claim()
        if claim is None and job.path.is_dir() and not job.has_begun() and job.claim_never():
            self.wake()
            return
        claim = claim or job.claim()
        if claim is not None and claim.send(signal.SIGUSR1):
            claim.send(signal.SIGCONT)  # a job may have stopped its supervisor

    def _live_or_new(self, name: str, job: JobDir) -> _LiveAttempt:
        with self._lock:
            if name not in self._live:
                self._live[name] = _live_from_files(job)
            return self._live[name]

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        return JobDir(self._jobs / native_id).read(stream, offset=offset, size=size)

    def refresh(self) -> float:
        return REFRESH_S

    def watch(self, timeout_s: float) -> None:
        if any(live.fd < 0 for live in self._live.values()):
            timeout_s = min(timeout_s, SCAN_S)
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            else:
                self._heard(key.fd, key.data)
        self._ended = [process for process in self._ended if process.poll() is None]

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is awake already; closed: nobody waits
            os.write(self._wake_write, b"!")

    def held(self) -> list[Lease]:
        # What nobody claimed has not begun: if its lease still holds, the server sends it again.
        begun = [job for job in map(JobDir, sorted(self._jobs.iterdir())) if job.has_begun()]
        return [lease for job in begun if (lease := job.lease()) is not None]

    def forget(self, native_id: str) -> None:
        shutil.rmtree(self._jobs / native_id, ignore_errors=True)
        self._containments.of(native_id).remove()

    def close(self) -> None:
        for live in self._live.values():
            self._release(live)
        self._live.clear()
        for process in self._ended:
            process.returncode = process.poll() or 0  # it goes on without us: not a leak to warn of
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _recover(self) -> None:
        """Take up again what the agent before us started: its supervisors live on."""
        for path in self._jobs.iterdir():
            job = JobDir(path)
            try:
                claim = job.claim()
                if claim is None or not claim.lives():
                    continue
                live = self._live[path.name] = _live_from_files(job, started=job.started(claim))
            except OSError:
                continue  # `status` says so
            live.claim = claim
            self._follow(path.name, live, claim)

    def _follow(self, name: str, live: _LiveAttempt, claim: SupervisorClaim) -> None:
        try:
            live.fd = os.pidfd_open(claim.pid)
        except OSError:
            return  # gone just now, or an old kernel: the scan sees it
        self._selector.register(live.fd, selectors.EVENT_READ, name)

    def _spawn(self, name: str, live: _LiveAttempt) -> None:
        self._release(live)
        live.process, live.fd = spawn_supervisor(
            self._program, self._jobs / name, self._setting, seal=self._seals.of(name)
        )
        live.spawned_at, live.tries = time.monotonic(), live.tries + 1
        self._selector.register(live.fd, selectors.EVENT_READ, name)

    def _heard(self, fd: int, name: str) -> None:
        """The pipe says `C` after the claim and `R` when the command runs. Its end is the end of the supervisor."""
        live = self._live.get(name)
        if live is not None and live.process is not None and (words := os.read(fd, 16)):
            # From the process itself, before the job began: no file can say otherwise.
            live.claim = SupervisorClaim(live.process.pid, proctable.start_time(live.process.pid), boot_id())
            if b"R" in words:
                live.is_told, live.since = True, time.monotonic()
            return
        self._selector.unregister(fd)
        os.close(fd)
        if live is not None and live.fd == fd:
            live.fd = -1

    def _release(self, live: _LiveAttempt) -> None:
        if live.fd >= 0:
            self._selector.unregister(live.fd)
            os.close(live.fd)
            live.fd = -1
        if live.process is not None:
            self._ended.append(live.process)
            live.process = None

    def _drop(self, name: str) -> None:
        with self._lock:
            live = self._live.pop(name, None)
        if live is not None:
            self._release(live)

    def _status_or_unknown(self, name: str) -> Status:
        """One job's damaged or unreadable directory says nothing about the others, nor that it ended."""
        job, live = JobDir(self._jobs / name), self._live.get(name)
        try:
            return self._status(name, job, live)
        except (OSError, ValueError) as exc:
            if live is not None and live.overdue():
                with contextlib.suppress(OSError, ValueError):
                    return self._over(name, job, live.claim, None)
            if isinstance(exc, PermissionError):
                with contextlib.suppress(OSError):
                    job.path.chmod(0o700)  # the job took our own right to look
            return Status(seen=ObservedState.UNKNOWN, text=f"its directory cannot be read: {exc}")

    def _status(self, name: str, job: JobDir, live: _LiveAttempt | None) -> Status:
        if live is not None and live.claim is None and live.process is not None and _is_readable(live.fd):
            self._heard(live.fd, name)
        # Before the claim: a supervisor that claims the job between the two looks has only just begun.
        has_begun = job.has_begun()
        claim = live.claim if live is not None and live.claim is not None else job.claim()
        if live is not None:
            live.claim = claim
        if claim is not None and claim.lives():
            if claim.is_stopped():
                claim.send(signal.SIGCONT)
            if live is None or not live.overdue():
                return local_status.running_status(job, claim, is_told=live is not None and live.is_told)
            return self._over(name, job, claim, None)
        # After the look at the supervisor, which writes this before it ends.
        end = job.exit(seal=self._seals.of(name))
        if end is None and claim is None and not has_begun and job.path.is_dir():
            is_contained = self._containments.of(name).is_begun()
            if not is_contained or job.has_begun():  # else the job has removed its files
                return self._unclaimed(name, job)
        return self._over(name, job, claim, end)

    def _over(self, name: str, job: JobDir, claim: SupervisorClaim | None, end: ExitRecord | None) -> Status:
        """Its supervisor is gone or was given up: it is over when no process of it is left."""
        live, contained = self._live_or_new(name, job), self._containments.of(name)
        killed = left = 0
        # A supervisor that wrote the end has seen every process go; else each one is looked for.
        if end is None or end.left or not contained.remove():
            if time.monotonic() < live.end_at:
                return Status(seen=ObservedState.UNKNOWN, text="some of its processes do not die")
            if claim is not None:
                claim.send(signal.SIGKILL)
            killed, left = contained.end(timeout_s=STRAYS_S_MAX)
        if left:
            live.end_at = time.monotonic() + STRAYS_RETRY_S
            return Status(seen=ObservedState.UNKNOWN, text="some of its processes do not die")
        self._drop(name)
        if end is not None:
            return local_status.ended_status(job, end, claim)
        return _status_without_exit(job, claim, live, killed)

    def _unclaimed(self, name: str, job: JobDir) -> Status:
        """Submitted, and no supervisor has it yet: it is on its way, or it died before and is started again."""
        live = self._live_or_new(name, job)
        waiting = Status(seen=ObservedState.SUBMITTED, text="waiting for its supervisor")
        code = live.process.poll() if live.process is not None else supervisor.EXIT_TRY_AGAIN
        if code is None or time.monotonic() - live.spawned_at < RESPAWN_S:
            return waiting
        if code != supervisor.EXIT_TRY_AGAIN and live.tries >= SPAWN_TRIES_MAX:
            if job.claim_never():
                self._drop(name)
                why = f"its supervisor ended with {code} before it began, {live.tries} times; see supervisor.log"
                return Status(seen=ObservedState.FAILED, reason=why)
            return waiting
        try:
            self._spawn(name, live)
        except OSError as exc:
            live.spawned_at = time.monotonic()
            return Status(seen=ObservedState.UNKNOWN, text=f"no supervisor can be started: {exc}")
        return waiting


def _is_readable(fd: int) -> bool:
    return fd >= 0 and bool(select.select([fd], [], [], 0)[0])


def _live_from_files(job: JobDir, *, started: Stamp | None = None) -> _LiveAttempt:
    """As its files say; a job may have spoilt them, which takes no room and keeps no other job from being ended."""
    lease = job.lease()
    with contextlib.suppress(ValueError):
        if lease is not None:
            return _live_from_lease(lease, started=started)
    return _LiveAttempt(ResourceNeed())


def _live_from_lease(lease: Lease, *, started: Stamp | None = None) -> _LiveAttempt:
    limit = spec_of(lease).resources.time_limit
    live = _LiveAttempt(need_of(spec_of(lease)), limit_s=None if limit is None else float(parse_duration_s(limit)))
    if started is not None:
        live.since -= started.age_us / 1e6
    return live


def _status_without_exit(job: JobDir, claim: SupervisorClaim | None, live: _LiveAttempt, killed: int) -> Status:
    """No supervisor wrote how it ended."""
    also = f", and {killed} processes it left were ended" if killed else ""
    if claim is not None and claim.pid == NEVER_PID and not killed:
        return Status(seen=ObservedState.CANCELLED, reason="cancelled before it started")
    if live.cancelled_at is not None:
        return Status(seen=ObservedState.CANCELLED, reason=f"cancelled; its supervisor did not do it{also}")
    if live.overdue() == "time-limit":
        return Status(
            seen=ObservedState.FAILED,
            reason=f"{local_status.time_limit_reason(job)}; its supervisor did not see to it{also}",
        )
    if not job.path.is_dir():
        return Status(seen=ObservedState.LOST, reason=f"the job's directory is gone{also}")
    if claim is not None and claim.boot != boot_id() and not killed:
        return Status(seen=ObservedState.LOST, reason="the machine was restarted while it ran")
    who = "its supervisor" if claim is None else f"its supervisor (pid {claim.pid})"
    forged = "; the exit file that is there is not the supervisor's" if os.path.lexists(job.path / "exit") else ""
    return Status(seen=ObservedState.LOST, reason=f"{who} was killed{also}{forged}")
