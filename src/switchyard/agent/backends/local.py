"""Runs jobs as processes of this machine, each under its own supervisor. It knows nothing of servers or journals."""

from __future__ import annotations

import contextlib
import os
import py_compile
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from switchyard.agent.backends import REFRESH_S, Piece, Quote, Setting, Status, marker, supervisor
from switchyard.agent.backends.jobdir import NEVER, Claim, Exit, JobDir
from switchyard.agent.clock import Stamp
from switchyard.agent.environment import variables
from switchyard.agent.need import Need, busy_for, load_of, need_of, quote_of, room_of, spec_of, total
from switchyard.errors import Unavailable
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.job import JobSpec
from switchyard.model.lifecycle import Seen
from switchyard.model.poll import Lease
from switchyard.model.quantity import parse_bytes, parse_duration_s

INHERITED = ("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR")
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"
RESPAWN_S = 1.0  # between tries to start a supervisor, e.g. while the disk is full
SPAWN_TRIES_MAX = 5  # of a supervisor that dies before it claims; a full disk does not count
SCAN_S = 0.05  # how often to look where the kernel has no pidfd to wait on
STRAYS_S_MAX = 2.0  # to see the processes of a dead supervisor gone


@dataclass(slots=True)
class _Live:
    """One attempt that takes up room here: submitted, and not seen to have ended."""

    need: Need
    process: subprocess.Popen[bytes] | None = None
    fd: int = -1  # readable when something happened: the supervisor's pipe, or its pidfd after a restart
    tries: int = 0
    spawned_at: float = 0.0
    limit_s: float | None = None
    since: float = field(default_factory=time.monotonic)  # when it began to take up room


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
        self._program = _compiled(setting.directory)
        self._lock = threading.Lock()  # over _live: the polls ask for the state while the runner submits
        self._live: dict[str, _Live] = {}
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
            taken = total(live.need for live in self._live.values())
            return load_of(self._graph, taken, running=len(self._live), queued=0)

    def quote(self, spec: JobSpec) -> Quote:
        whole = room_of(load_of(self._graph, Need(), running=0, queued=0), less=Need())
        now = time.monotonic()
        with self._lock:
            busy = [busy_for(live.need, ran_s=now - live.since, limit_s=live.limit_s) for live in self._live.values()]
        free = room_of(load_of(self._graph, total(each.need for each in busy), running=0, queued=0), less=Need())
        return quote_of(need_of(spec), whole, free, busy)

    def submit(self, lease: Lease) -> str:
        name = marker(lease)
        job = JobDir(self._jobs / name)
        with self._lock:
            live = self._live.setdefault(name, _live_of(lease))
        if live.process is not None and live.process.poll() is None:
            return name
        try:
            if job.claim() is None:
                job.write_start(lease, start_words(lease, job.path, self._setting))
                self._spawn(name, live)
        except OSError as exc:
            self._drop(name)
            raise Unavailable(f"The job's directory {job.path} cannot be written: {exc}.") from exc
        return name

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        return [self.submit(lease) for lease in leases]

    def find(self, marker: str) -> str | None:
        return marker if (self._jobs / marker).is_dir() else None

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        return {name: self._status_or_unknown(name) for name in native_ids}

    def cancel(self, native_ids: Collection[str]) -> None:
        problem = ""
        for native_id in native_ids:
            try:
                self._cancel(JobDir(self._jobs / native_id))
            except OSError as exc:
                problem = f"{self._jobs / native_id} cannot be written: {exc}."
        if problem:
            raise Unavailable(problem)

    def _cancel(self, job: JobDir) -> None:
        if not job.path.is_dir():
            return
        if job.claim() is None and job.claim_never():
            self.wake()
            return
        claim = job.claim()
        if claim is not None:
            claim.send(signal.SIGUSR1)

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> Piece:
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
        begun = [job for job in map(JobDir, sorted(self._jobs.iterdir())) if job.claim() is not None]
        return [lease for job in begun if (lease := job.lease()) is not None]

    def forget(self, native_id: str) -> None:
        shutil.rmtree(self._jobs / native_id, ignore_errors=True)

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
            if (path / "exit").exists():
                continue
            claim, lease = job.claim(), job.lease()
            if claim is None or lease is None or not claim.lives():
                continue
            live = self._live[path.name] = _live_of(lease, started=job.started())
            self._follow(path.name, live, claim)

    def _follow(self, name: str, live: _Live, claim: Claim) -> None:
        try:
            live.fd = os.pidfd_open(claim.pid)
        except OSError:
            return  # gone just now, or an old kernel: the scan sees it
        self._selector.register(live.fd, selectors.EVENT_READ, name)

    def _spawn(self, name: str, live: _Live) -> None:
        self._release(live)
        read_end, write_end = os.pipe()
        path = self._jobs / name
        try:
            with (path / "supervisor.log").open("ab") as log:
                live.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(self._program), str(path), str(write_end)],
                    pass_fds=[write_end],
                    start_new_session=True,  # a signal to the agent's group or terminal does not reach it
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,  # not the agent's: it outlives the agent, and would hold its terminal or pipe
                    cwd=path,
                    env=dict(self._setting.environment),
                )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        live.fd, live.spawned_at, live.tries = read_end, time.monotonic(), live.tries + 1
        self._selector.register(read_end, selectors.EVENT_READ, name)

    def _heard(self, fd: int, name: str) -> None:
        """The pipe says `R` when the command runs, and ends with the supervisor; a pidfd says only the end."""
        live = self._live.get(name)
        if live is not None and live.process is not None and os.read(fd, 1):
            return
        self._selector.unregister(fd)
        os.close(fd)
        if live is not None and live.fd == fd:
            live.fd = -1

    def _release(self, live: _Live) -> None:
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
        try:
            return self._status(name)
        except (OSError, ValueError) as exc:
            return Status(seen=Seen.UNKNOWN, text=f"its directory cannot be read: {exc}")

    def _status(self, name: str) -> Status:
        job = JobDir(self._jobs / name)
        claim = job.claim()
        ended = job.exit()
        if ended is None and claim is not None and claim.lives():
            return _running(job)
        ended = ended or job.exit()  # once more after the look at the supervisor: it writes this before it ends
        if ended is not None:
            self._drop(name)
            return _ended(job, ended)
        if claim is None:
            return self._unclaimed(name, job)
        self._drop(name)
        if claim.pid == NEVER:
            return Status(seen=Seen.CANCELLED, reason="cancelled before it started")
        if claim.boot != supervisor.boot_id():
            return Status(seen=Seen.LOST, reason="the machine was restarted while it ran")
        strays = _end_strays(job)
        also = f", and {strays} processes it left were ended" if strays else ""
        return Status(seen=Seen.LOST, reason=f"its supervisor (pid {claim.pid}) was killed{also}")

    def _unclaimed(self, name: str, job: JobDir) -> Status:
        """Submitted, and no supervisor has it yet: it is on its way, or it died before and is started again."""
        if not job.path.is_dir():
            self._drop(name)
            return Status(seen=Seen.LOST, reason="the job's directory is gone")
        with self._lock:
            lease = job.lease()
            live = self._live.setdefault(name, _live_of(lease) if lease else _Live(Need()))
        waiting = Status(seen=Seen.SUBMITTED, text="waiting for its supervisor")
        code = live.process.poll() if live.process is not None else supervisor.END_AGAIN
        if code is None or time.monotonic() - live.spawned_at < RESPAWN_S:
            return waiting
        if code != supervisor.END_AGAIN and live.tries >= SPAWN_TRIES_MAX:
            if job.claim_never():
                self._drop(name)
                why = f"its supervisor ended with {code} before it began, {live.tries} times; see supervisor.log"
                return Status(seen=Seen.FAILED, reason=why)
            return waiting
        try:
            self._spawn(name, live)
        except OSError as exc:
            live.spawned_at = time.monotonic()
            return Status(seen=Seen.UNKNOWN, text=f"no supervisor can be started: {exc}")
        return waiting


def _live_of(lease: Lease, *, started: Stamp | None = None) -> _Live:
    limit = spec_of(lease).resources.time_limit
    live = _Live(need_of(spec_of(lease)), limit_s=None if limit is None else float(parse_duration_s(limit)))
    if started is not None:
        live.since -= started.age_us / 1e6
    return live


def start_words(lease: Lease, path: Path, setting: Setting) -> list[bytes]:
    """What the supervisor is to run, as the words of its start file."""
    spec = spec_of(lease)
    words = [f"arg={arg}" for arg in spec.command]
    words += [f"env={key}={value}" for key, value in environment(lease, setting).items()]
    words.append(f"cwd={spec.cwd or path / 'work'}")
    ask = spec.resources
    if ask.time_limit is not None:
        words.append(f"limit_s={parse_duration_s(ask.time_limit)}")
    memory = ask.asked.memory if ask.limits.memory is None else ask.limits.memory
    words.append(f"data_bytes={parse_bytes(memory) * ask.tasks}")
    return [os.fsencode(word) for word in words]


def environment(lease: Lease, setting: Setting) -> dict[str, str]:
    inherited = {key: setting.environment[key] for key in INHERITED if key in setting.environment}
    return {"PATH": PATH_DEFAULT, **inherited, **variables(lease, setting.cluster)}


def show_duration(seconds: int) -> str:
    """10s, 1m30s, 2h: as people write it."""
    parts = [(seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def _running(job: JobDir) -> Status:
    started = job.started()
    if started is None:
        return Status(seen=Seen.SUBMITTED, text="starting")
    return Status(seen=Seen.RUNNING, ago_us=started.age_us)


def _ended(job: JobDir, ended: Exit) -> Status:
    seen, reason = Seen.FAILED, ended.reason
    if ended.cause == "cancel":
        seen, reason = Seen.CANCELLED, "cancelled"
    elif ended.cause == "time-limit":
        lease = job.lease()
        limit = spec_of(lease).resources.time_limit if lease else None
        reason = f"time limit of {show_duration(parse_duration_s(limit))} reached" if limit else "time limit reached"
    elif ended.cause == "stopped":
        reason = "its supervisor was told to end by SIGTERM, not by the agent"
    elif ended.cause == "exit" and ended.code == 0:
        seen = Seen.SUCCEEDED
    elif ended.cause == "exit" and ended.signal is not None:
        reason = f"killed by {signal_name(ended.signal)}"
    elif ended.cause == "exit":
        reason = f"exit code {ended.code}"
    extra = f"; {ended.reason}" if ended.reason and ended.reason not in reason else ""
    started = job.started()
    return Status(
        seen=seen,
        reason=reason + extra,
        exit_code=ended.code,
        signal=ended.signal,
        ago_us=ended.at.age_us,
        began_ago_us=started.age_us if started else None,
    )


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _end_strays(job: JobDir) -> int:
    """KILL until none is seen. Each look finds what the last one's victims had just started."""
    lease, seen, until = job.lease(), 0, time.monotonic() + STRAYS_S_MAX
    while (found := job.end_strays(lease)) and time.monotonic() < until:
        seen = max(seen, found)
        time.sleep(0.01)
    return seen


def _compiled(directory: Path) -> Path:
    """The supervisor compiled once: compiling it at each start would be a quarter of the way from spawn to exec."""
    source = Path(supervisor.__file__)
    try:
        return Path(py_compile.compile(str(source), cfile=str(directory / "supervisor.pyc"), doraise=True) or source)
    except (OSError, py_compile.PyCompileError):
        return source
