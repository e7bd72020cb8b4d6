"""The local backend: runs jobs as processes of this machine, each under a supervisor. It knows no server or journal."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from switchyard.agent.backends import (
    REFRESH_S,
    TERMINAL_STATES,
    BackendQuote,
    LocalMachine,
    OptionalCalls,
    OutputPiece,
    Setting,
    Status,
    Trouble,
    WorkFolder,
    marker_of,
)
from switchyard.agent.backends.shared.work_folders import WorkFolders
from switchyard.agent.files.folder_removal import remove_folder
from switchyard.agent.log import line
from switchyard.agent.loop.clock import Stamp, boot_id
from switchyard.agent.loop.need import (
    ResourceNeed,
    estimate_occupied,
    load_of,
    need_of,
    quote_of,
    room_of,
    spec_of,
    total_need,
)
from switchyard.agent.site.discover import host_name
from switchyard.agent.site.images import container_programs, graph_with_images
from switchyard.errors import Unavailable, YardError
from switchyard.features.local.agent import local_status, proctable, supervisor
from switchyard.features.local.agent.containment import Containments, remove_containers
from switchyard.features.local.agent.job_mounts import release_mounts
from switchyard.features.local.agent.jobdir import ExitRecord, JobDir, Seals, SupervisorClaim
from switchyard.features.local.agent.launch import (
    VARIABLES_FILE,
    account_for,
    load_job_accounts,
    mounts_folder,
    spawn_supervisor,
    start_files,
)
from switchyard.features.local.agent.supervisor_program import SupervisorProgram, start_failure
from switchyard.model.cluster.allocation import WORDS_CHARS_MAX, GivenResources, shown_types
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.hardware import GPU, Hardware
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.jobspec.devices import devices_of, typed_resources
from switchyard.model.jobspec.quantity import parse_duration_s

RESPAWN_S = 1.0  # between tries to start a supervisor, e.g. while the disk is full
SPAWN_TRIES_MAX = 5  # of a supervisor that dies before its claim; failures by a full disk do not count
SCAN_S = 0.05  # how often to check where the kernel has no pidfd
STRAYS_S_MAX = 2.0  # to end the processes of a dead supervisor
STRAYS_RETRY_S = 5.0  # until the next try, if processes hang in the kernel

log = logging.getLogger(__name__)


class LocalBackend(OptionalCalls):
    kind: ClassVar[str] = "local"
    is_submit_repeatable: ClassVar[bool] = True  # the claim in the job's directory admits one supervisor
    has_queue: ClassVar[bool] = False
    finds_graph: ClassVar[bool] = False
    submits_at_once: ClassVar[int] = 1
    jobs_max: ClassVar[int] = 64
    has_folders_here: ClassVar[bool] = True
    range_max: int = 1

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._graph = graph_with_images(setting.known_graph, setting.site, setting.environment)
        self._gpus = setting.gpus  # by index, of the same look as the graph
        self._host = host_name()
        self._jobs = setting.directory / "jobs"
        self._jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._mounts = mounts_folder(setting.directory)
        self._accounts = load_job_accounts(setting)
        self._work = WorkFolders(
            setting.files_folder(setting.directory) / "work", is_for_others=setting.site.accounts is not None
        )
        self._program = SupervisorProgram(setting.directory)
        self._seals = Seals(setting.directory, begun=[path.name for path in self._jobs.iterdir()])
        self._containments = Containments(setting.directory, setting.site.local.containment)
        log.info(
            line("containment", way="cgroup" if self._containments.base else "process", at=self._containments.base)
        )
        self._lock = threading.Lock()  # guards _live, _graph and _gpus: polls and looks come while the runner submits
        self._live: dict[str, LiveAttempt] = {}
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
        setting = self._setting
        machine = LocalMachine(setting.known_graph, setting.gpus) if setting.look is None else setting.look()
        graph = graph_with_images(machine.graph, setting.site, setting.environment)
        with self._lock:
            before, self._graph, self._gpus = self._graph, graph, machine.gpus
        return graph != before

    def state(self) -> Load:
        with self._lock:
            occupied = total_need(live.need for live in self._live.values())
            types = free_types(self._gpus, self._taken_gpus())
            return load_of(self._graph, occupied, running=len(self._live), queued=0, free_types=types)

    def _taken_gpus(self) -> set[int]:
        return {index for live in self._live.values() for index in live.gpus}

    def trouble(self) -> Trouble | None:
        text = self._program.trouble()
        return Trouble(text) if text else None

    def quote(self, spec: JobSpec) -> BackendQuote:
        total = room_of(load_of(self._graph, ResourceNeed(), running=0, queued=0), less=ResourceNeed())
        now = time.monotonic()
        with self._lock:
            busy = [
                estimate_occupied(live.need, ran_s=now - live.since, limit_s=live.limit_s)
                for live in self._live.values()
            ]
        free = room_of(
            load_of(self._graph, total_need(job.need for job in busy), running=0, queued=0), less=ResourceNeed()
        )
        return quote_of(need_of(spec), total, free, busy)

    def work_folder(self, lease: Lease) -> WorkFolder:
        return self._work.of(lease, account_for(lease, self._setting, self._accounts))

    def submit(self, lease: Lease) -> str:
        name = marker_of(lease)
        job = JobDir(self._jobs / name)
        with self._lock:
            live = self._live.get(name) or live_from_lease(lease)
            if self._gpus and not live.gpus:
                live.gpus = choose_gpus(lease, self._gpus, self._taken_gpus())
                live.gpu_types = gpu_types(self._gpus, live.gpus)
            self._live[name] = live
        if live.process is not None and live.process.poll() is None:
            return name
        try:
            if live.claim is None and not job.has_begun() and not self._containments.of(name).is_begun():
                account = account_for(lease, self._setting, self._accounts)
                home = job.work if spec_of(lease).files is None else self._work.path_of(lease)
                words = self._containments.words(name)
                own = gpu_variables(live.gpus)
                files = start_files(lease, home, self._setting, account, directory=job.path, further=words, own=own)
                variables = None if files.variables is None else (VARIABLES_FILE, files.variables)
                job.write_start(lease, files.words, account, variables=variables, gpus=live.gpus)
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

    def end_jobs(self, native_ids: Collection[str]) -> None:
        """Cancel these jobs and wait until no process of them is left. Jobs that do not end in time are killed."""
        self.cancel(native_ids)
        left, until = set(native_ids), time.monotonic() + supervisor.BOUND_GRACE_S
        while left := {name for name in left if self._status_or_unknown(name).seen not in TERMINAL_STATES}:
            if time.monotonic() > until:
                break
            self.watch(SCAN_S)
        for name in left:
            job = JobDir(self._jobs / name)
            with contextlib.suppress(OSError, ValueError):  # a job may have damaged its directory
                self._over(name, job, self._live_or_new(name, job).claim, None)

    def _live_or_new(self, name: str, job: JobDir) -> LiveAttempt:
        with self._lock:
            if name not in self._live:
                self._live[name] = live_from_files(job)
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
                self._read_pipe(key.fd, key.data)
        self._ended = [process for process in self._ended if process.poll() is None]

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: already awake; closed: no watch
            os.write(self._wake_write, b"!")

    def held(self) -> list[Lease]:
        # An unclaimed attempt has not begun: the server leases it again if it is still wanted.
        begun = [job for job in map(JobDir, sorted(self._jobs.iterdir())) if job.has_begun()]
        return [lease for job in begun if (lease := job.lease()) is not None]

    def forget(self, native_id: str) -> None:
        self._release_mounts(native_id)
        remove_folder(self._jobs / native_id)
        self._containments.of(native_id).remove()

    def _release_mounts(self, name: str) -> None:
        """Unmount what a supervisor that was killed had mounted for a container."""
        place = self._mounts / name
        if not release_mounts(os.fsencode(place)):
            log.warning(line("mounts-not-released", path=place, next=f"umount {place}/*; rmdir {place}/* {place}"))

    def close(self) -> None:
        for live in self._live.values():
            self._release(live)
        self._live.clear()
        for process in self._ended:
            process.returncode = process.poll() or 0  # the supervisor goes on: suppress the warning about a leak
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _recover(self) -> None:
        """Follow the attempts that the previous agent started: their supervisors live on."""
        for place in self._mounts.iterdir() if self._mounts.is_dir() else ():
            if not (self._jobs / place.name).is_dir():
                self._release_mounts(place.name)
        for path in self._jobs.iterdir():
            job = JobDir(path)
            try:
                claim = job.claim()
                if claim is None or not claim.lives():
                    continue
                live = self._live[path.name] = live_from_files(job, started=job.started(claim))
                live.gpus = job.gpus()
            except OSError:
                continue  # `status` says so
            live.claim = claim
            self._follow(path.name, live, claim)

    def _follow(self, name: str, live: LiveAttempt, claim: SupervisorClaim) -> None:
        try:
            live.fd = os.pidfd_open(claim.pid)
        except OSError:
            return  # just gone, or an old kernel: the scan sees it
        self._selector.register(live.fd, selectors.EVENT_READ, name)

    def _spawn(self, name: str, live: LiveAttempt) -> None:
        self._release(live)
        program = self._program.path(is_suspect=live.tries > 0)
        live.process, live.fd = spawn_supervisor(program, self._jobs / name, self._setting, seal=self._seals.of(name))
        live.spawned_at, live.tries = time.monotonic(), live.tries + 1
        self._selector.register(live.fd, selectors.EVENT_READ, name)

    def _read_pipe(self, fd: int, name: str) -> None:
        """Read the supervisor's pipe: `C` after the claim, `R` when the command runs, closed when it ends."""
        live = self._live.get(name)
        if live is not None and live.process is not None and (words := os.read(fd, 16)):
            # From the process itself, before the job began: more reliable than any file.
            live.claim = SupervisorClaim(live.process.pid, proctable.start_time(live.process.pid), boot_id())
            self._program.note_start()
            if b"R" in words:
                live.is_run_reported, live.since = True, time.monotonic()
            return
        self._selector.unregister(fd)
        os.close(fd)
        if live is not None and live.fd == fd:
            live.fd = -1

    def _release(self, live: LiveAttempt) -> None:
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
        """The status of one job; UNKNOWN if its directory is damaged or unreadable."""
        job, live = JobDir(self._jobs / name), self._live.get(name)
        try:
            return self._status(name, job, live)
        except (OSError, ValueError) as exc:
            if live is not None and live.overdue():
                with contextlib.suppress(OSError, ValueError):
                    return self._over(name, job, live.claim, None)
            if isinstance(exc, PermissionError):
                with contextlib.suppress(OSError):
                    job.path.chmod(0o700)  # the job removed our permission
            return Status(seen=ObservedState.UNKNOWN, text=f"its directory cannot be read: {exc}")

    def _status(self, name: str, job: JobDir, live: LiveAttempt | None) -> Status:
        if live is not None and live.claim is None and live.process is not None and _is_readable(live.fd):
            self._read_pipe(live.fd, name)
        # Read before the claim: a supervisor that claims in between has only just begun.
        has_begun = job.has_begun()
        claim = live.claim if live is not None and live.claim is not None else job.claim()
        if live is not None:
            live.claim = claim
        if claim is not None and claim.lives():
            if claim.is_stopped():
                claim.send(signal.SIGCONT)
            if live is None or not live.overdue():
                status = local_status.running_status(
                    job, claim, is_run_reported=live is not None and live.is_run_reported
                )
                return replace(status, usage=self._usage(job, live)) if live is not None and live.gpus else status
            return self._over(name, job, claim, None)
        # Read after the supervisor's state: it writes this file before it ends.
        end = job.exit(seal=self._seals.of(name))
        if end is None and claim is None and not has_begun and job.path.is_dir():
            is_contained = self._containments.of(name).is_begun()
            if not is_contained or job.has_begun():  # else the job removed its files
                return self._unclaimed(name, job)
        return self._over(name, job, claim, end)

    def _over(self, name: str, job: JobDir, claim: SupervisorClaim | None, end: ExitRecord | None) -> Status:
        """The supervisor is gone or was given up: the job is over when no process of it is left."""
        live, contained = self._live_or_new(name, job), self._containments.of(name)
        killed = left = 0
        # A supervisor that wrote the end has seen all processes end; else they are searched for.
        if end is None or end.left or end.is_container_left or not contained.remove():
            if time.monotonic() < live.end_at:
                return Status(seen=ObservedState.UNKNOWN, text="some of its processes do not die")
            if claim is not None:
                claim.send(signal.SIGKILL)
            killed, left = contained.end(timeout_s=STRAYS_S_MAX)
            left += self._count_containers_left(name, job)
        if left:
            live.end_at = time.monotonic() + STRAYS_RETRY_S
            return Status(seen=ObservedState.UNKNOWN, text="some of its processes do not die")
        self._release_mounts(name)
        self._drop(name)
        if end is not None:
            site_bytes = self._setting.site.local.output_bytes
            status = local_status.ended_status(job, end, claim, site_output_bytes=site_bytes)
            return status if status.began_ago_us is None else replace(status, usage=self._usage(job, live, status))
        return local_status.status_without_exit(
            job, claim, killed, is_cancelled=live.cancelled_at is not None, is_late=live.overdue() == "time-limit"
        )

    def _usage(self, job: JobDir, live: LiveAttempt, end: Status | None = None) -> Usage:
        """What the job was given: the GPUs that it may see, and the cores and memory that are kept for it."""
        elapsed_us = 0 if end is None or end.began_ago_us is None else max(0, end.began_ago_us - end.ago_us)
        need = live.need
        gpus = live.gpus or (job.gpus() if need.gpus else ())  # it ended while no agent ran
        return Usage(
            elapsed_s=elapsed_us // 1_000_000,
            nodes=self._host,
            allocated=GivenResources(
                cores=need.cores,
                memory_bytes=need.memory_bytes or None,
                gpus=len(gpus) or None,
                gpu_types=live.gpu_types or gpu_types(self._gpus, gpus),
                gpu_ids=",".join(map(str, gpus))[:WORDS_CHARS_MAX],
            ),
        )

    def _count_containers_left(self, name: str, job: JobDir) -> int:
        """Remove the container of an attempt whose supervisor did not. Returns how many could not be removed."""
        programs = container_programs(self._setting.site)
        lease = job.lease() if programs else None
        if not programs or (lease is not None and spec_of(lease).image is None):
            return 0
        return remove_containers(name, programs, self._setting.environment)

    def _unclaimed(self, name: str, job: JobDir) -> Status:
        """No supervisor has claimed the job: it is starting, or it died before the claim and is started again."""
        live = self._live_or_new(name, job)
        waiting = Status(seen=ObservedState.SUBMITTED, text="waiting for its supervisor")
        code = live.process.poll() if live.process is not None else supervisor.EXIT_TRY_AGAIN
        if code is None or time.monotonic() - live.spawned_at < RESPAWN_S:
            return waiting
        if code != supervisor.EXIT_TRY_AGAIN and live.tries >= SPAWN_TRIES_MAX:
            if job.claim_never():
                self._drop(name)
                why = start_failure(job.path, code, live.tries)
                self._program.note_failure(why)
                return Status(seen=ObservedState.FAILED, reason=why, cause=Cause.CLUSTER, is_unbegun=True)
            return waiting
        try:
            self._spawn(name, live)
        except OSError as exc:
            live.spawned_at = time.monotonic()
            return Status(seen=ObservedState.UNKNOWN, text=f"no supervisor can be started: {exc}")
        return waiting


def _is_readable(fd: int) -> bool:
    return fd >= 0 and bool(select.select([fd], [], [], 0)[0])


# After a cancel or a time limit: how long the supervisor has before the agent ends it and the job. It gives the job
# GRACE_S; it takes longer only if it was stopped or if processes hang in the kernel.
CANCEL_S_MAX = supervisor.GRACE_S + 5.0
LIMIT_S_MAX = supervisor.GRACE_S + 15.0


class LiveAttempt:
    """One attempt that occupies resources: submitted, and not seen to have ended."""

    def __init__(self, need: ResourceNeed, *, limit_s: float | None = None, cleanup_s: float = 0.0) -> None:
        self.need = need
        self.process: subprocess.Popen[bytes] | None = None
        # Readable after a change: the supervisor's pipe, or its pidfd after a restart. To close the pipe ends a bound
        # job.
        self.fd = -1
        self.tries = 0
        self.spawned_at = 0.0
        self.gpus: tuple[int, ...] = ()  # of this machine, by index …
        self.gpu_types: tuple[str, ...] = ()  # … and their types, when they were given
        self.limit_s = limit_s
        self.since = time.monotonic()  # when it began to occupy resources
        self.claim: SupervisorClaim | None = None  # as first read: a job under our account could change the file
        self.is_run_reported = False  # the supervisor reported that the command runs
        self.cancelled_at: float | None = None  # when it was first cancelled
        self.end_at = 0.0  # earliest next try to end processes that did not die
        self.cleanup_s = cleanup_s  # what its supervisor may take longer, to remove its container

    def overdue(self) -> str:
        """Why the supervisor should have ended the job by now; empty: it still has time."""
        now = time.monotonic()
        if self.cancelled_at is not None and now - self.cancelled_at > CANCEL_S_MAX + self.cleanup_s:
            return "cancel"
        is_late = self.limit_s is not None and now - self.since > self.limit_s + LIMIT_S_MAX + self.cleanup_s
        return "time-limit" if is_late and self.claim is not None else ""


def live_from_files(job: JobDir, *, started: Stamp | None = None) -> LiveAttempt:
    """An attempt as its files describe it. Files that a job damaged count as no resources and no time limit."""
    lease = job.lease()
    with contextlib.suppress(ValueError):
        if lease is not None:
            return live_from_lease(lease, started=started)
    return LiveAttempt(ResourceNeed())


def live_from_lease(lease: Lease, *, started: Stamp | None = None) -> LiveAttempt:
    spec = spec_of(lease)
    limit = spec.resources.time_limit
    live = LiveAttempt(
        need_of(spec),
        limit_s=None if limit is None else float(parse_duration_s(limit)),
        cleanup_s=0.0 if spec.image is None else supervisor.CONTAINER_S_MAX + supervisor.CLEANUP_S_MAX,
    )
    if started is not None:
        live.since -= started.age_us / 1e6
    return live


def choose_gpus(lease: Lease, gpus: Sequence[Hardware], taken: Collection[int]) -> tuple[int, ...]:
    """Choose the GPUs of a job, by index. Raises Unavailable if other jobs have them.

    A job that names no type leaves rare types to the jobs that name one.
    """
    spec = spec_of(lease)
    asked = [device for device in devices_of(typed_resources(spec)) if device.kind == GPU]
    free = [index for index in range(len(gpus)) if index not in taken]
    chosen: list[int] = []
    for device in sorted(asked, key=lambda device: not device.type):
        count = device.count * spec.resources.tasks
        left = Counter(gpus[index].name for index in free)
        fitting = [index for index in free if device.is_met_by(gpus[index])]
        given = sorted(fitting, key=lambda index: (-left[gpus[index].name], index))[:count]
        if len(given) < count:
            raise Unavailable(
                f"Only {len(given)} of {count} {device.type or 'GPUs'} are free.",
                next_step="Wait until jobs there end.",
            )
        chosen += given
        free = [index for index in free if index not in given]
    return tuple(sorted(chosen))


def gpu_types(gpus: Sequence[Hardware], chosen: Iterable[int]) -> tuple[str, ...]:
    """The types of these GPUs, as far as the driver tells them."""
    return shown_types({gpus[index].name for index in chosen if index < len(gpus)})


def gpu_variables(chosen: Collection[int]) -> dict[str, str]:
    """The variables that keep a job to its GPUs. CUDA counts by speed unless told to count as `nvidia-smi` does."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, chosen))} if chosen else {}


def free_types(gpus: Sequence[Hardware], taken: Collection[int]) -> dict[str, int]:
    """The free GPUs by type, if there are several types."""
    counts = {name: 0 for name, _ in gpus}
    for index, (name, _) in enumerate(gpus):
        counts[name] += index not in taken
    return counts if len(counts) > 1 else {}
