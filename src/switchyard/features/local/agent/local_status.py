"""Turns the files of a local job into its status. Reads only."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from dataclasses import replace

from switchyard.agent.backends import Status, signal_name
from switchyard.agent.backends.shared.container_end import (
    KILL,
    LAST_WORDS_MAX,
    OUT_OF_MEMORY_REASON,
    RUNTIME_FAILED_CODE,
    SIGNAL_CODES,
    ran_out_of_memory,
    start_failure,
)
from switchyard.agent.backends.shared.returns import limit_returns
from switchyard.agent.loop.clock import boot_id
from switchyard.agent.loop.need import memory_limit_bytes, spec_of
from switchyard.features.local.agent.jobdir import NEVER_PID, ExitRecord, JobDir, SupervisorClaim
from switchyard.features.local.agent.launch import output_limit_bytes
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.jobspec.quantity import parse_duration_s, show_bytes, show_duration

LAST_WORDS_BYTES = 4096
DISK_FULL_BYTES = 2**20  # a disk with less free has no room for what a job writes
# Handovers of a job whose container cannot be made, with pauses of 30 seconds in all. Then its user is told.
CONTAINER_STARTS_MAX = 5
APPTAINER_FAILED_CODE, APPTAINER_WORDS = 255, "FATAL:"  # a command may end so, too: it proves nothing
PERHAPS_OUT_OF_MEMORY = "perhaps it used more memory than its "
# Ends that the supervisor brought about, or before the command began.
FAILURE_BY_CAUSE = {
    "time-limit": FailureKind.TIME_LIMIT,
    "output-limit": FailureKind.DISK,
    "start": FailureKind.START,
    "group": FailureKind.START,
    "setup": FailureKind.START,
}
UNBEGUN_CAUSES = ("group", "setup")  # of an end before the command began, by a fault of this machine
# What Python, C++, the C library, shells and Java write when they get no memory.
NO_MEMORY = re.compile(
    r"\b(MemoryError|std::bad_alloc|OutOfMemoryError|[Cc]annot allocate memory|[Oo]ut of memory)\b"
    r"|: cannot allocate \d+ bytes"
)


def running_status(job: JobDir, claim: SupervisorClaim, *, is_run_reported: bool) -> Status:
    """`is_run_reported`: the supervisor reported that the command runs."""
    started = job.started(claim)
    if started is None and not is_run_reported:
        return Status(seen=ObservedState.SUBMITTED, text="starting")
    return Status(seen=ObservedState.RUNNING, ago_us=started.age_us if started else 0)


def ended_status(job: JobDir, end: ExitRecord, claim: SupervisorClaim | None, *, site_output_bytes: int = 0) -> Status:
    """`site_output_bytes`: the site's bound on the output of a job."""
    is_unbegun = end.cause in UNBEGUN_CAUSES
    cause = Cause.CLUSTER if is_unbegun else Cause.JOB
    if end.container is not None:
        end, cause = container_end(end, last_words=_last_words(job), memory_bytes=_memory_bytes(job))
    seen, reason, failure = ObservedState.FAILED, end.reason, FAILURE_BY_CAUSE.get(end.cause)
    if end.cause == "cancel":
        seen, reason = ObservedState.CANCELLED, "cancelled"
    elif end.cause == "time-limit":
        reason = time_limit_reason(job)
    elif end.cause == "output-limit":
        reason = output_limit_reason(job, site_output_bytes)
    elif end.cause == "stopped":
        reason = "its supervisor was told to end by SIGTERM, not by the agent"
    elif end.cause == "agent":
        seen, reason = ObservedState.LOST, "its agent ended, and the agent's jobs end with it"
    elif end.cause == "exit" and end.code == 0:
        seen = ObservedState.SUCCEEDED
    elif end.cause == "exit":
        reason = f"exit code {end.code}" if end.signal is None else f"killed by {signal_name(end.signal)}"
        memory_words = _memory_words(job, end) if end.container is None else ""
        disk_words = _disk_words(job)
        reason += memory_words + (_apptainer_words(job, end) if end.container is None else "") + disk_words
        is_out_of_memory = memory_words or end.reason.startswith((OUT_OF_MEMORY_REASON, PERHAPS_OUT_OF_MEMORY))
        failure = FailureKind.OUT_OF_MEMORY if is_out_of_memory else FailureKind.DISK if disk_words else None
    if is_start_failure(end):
        return _returned(job, Status(seen=ObservedState.RETURNED, reason=reason, cause=cause, ago_us=end.at.age_us))
    extra = f"; {end.reason}" if end.reason and end.reason not in reason else ""
    started = job.started(claim)
    return Status(
        seen=seen,
        reason=reason + extra,
        exit_code=end.code,
        signal=end.signal,
        ago_us=end.at.age_us,
        began_ago_us=started.age_us if started else None,
        cause=cause,
        is_unbegun=is_unbegun,
        failure=failure,
    )


def _returned(job: JobDir, status: Status) -> Status:
    """A job whose container was not made goes back to the queue, but not for ever: its image may be missing."""
    lease = job.lease()
    return limit_returns(status, CONTAINER_STARTS_MAX if lease is None else lease.attempt, CONTAINER_STARTS_MAX)


def _apptainer_words(job: JobDir, end: ExitRecord) -> str:
    lease = job.lease() if end.code == APPTAINER_FAILED_CODE else None
    words = _last_words(job)[:LAST_WORDS_MAX] if lease is not None else ""
    with contextlib.suppress(ValueError):  # a job may have changed its lease
        if lease is not None and spec_of(lease).image is not None and words.startswith(APPTAINER_WORDS):
            return f"; perhaps its container did not start: {words}"
    return ""


def _memory_words(job: JobDir, end: ExitRecord) -> str:
    """Whether a failed command ran out of memory: by the kernel's count, or by what it wrote last.

    A local job has a limit on what its processes may allocate. Beyond it they get an error; the kernel ends none.
    """
    if end.memory_kills == "group":
        return "; out of memory: the kernel ended a process of it"
    if NO_MEMORY.search(_end_of_stderr(job)):
        limit = _memory_bytes(job)
        return "; out of memory, as its stderr says" + (f": it may use {show_bytes(limit)}" if limit else "")
    is_killed = end.signal == signal.SIGKILL or end.code == 128 + signal.SIGKILL
    if is_killed and end.memory_kills == "machine":
        return "; perhaps out of memory: meanwhile the kernel ended a process on this machine for lack of it"
    return ""


def _disk_words(job: JobDir) -> str:
    """Whether a failed command perhaps found no room to write. Its stderr is on the same disk, and cannot say it."""
    try:
        free = shutil.disk_usage(job.path).free
    except OSError:
        return ""
    return f"; perhaps for lack of room: its disk has {show_bytes(free)} free" if free < DISK_FULL_BYTES else ""


def _last_words(job: JobDir) -> str:
    """The last line of stderr, where a runtime says what is wrong."""
    lines = _end_of_stderr(job).strip().splitlines()
    return lines[-1].strip() if lines else ""


def _end_of_stderr(job: JobDir) -> str:
    with contextlib.suppress(OSError):
        total = job.read("stderr", offset=0, size=0).total
        data = job.read("stderr", offset=max(0, total - LAST_WORDS_BYTES), size=LAST_WORDS_BYTES).data
        return data.decode(errors="replace")
    return ""


def _memory_bytes(job: JobDir) -> int:
    lease = job.lease()
    with contextlib.suppress(ValueError):  # a job may have changed its lease
        return 0 if lease is None else memory_limit_bytes(spec_of(lease))
    return 0


def status_without_exit(
    job: JobDir, claim: SupervisorClaim | None, killed: int, *, is_cancelled: bool, is_late: bool
) -> Status:
    """The status of a job whose supervisor wrote no exit file. `is_late`: the time limit is over."""
    also = f", and {killed} processes it left were ended" if killed else ""
    if claim is not None and claim.pid == NEVER_PID and not killed:
        return Status(seen=ObservedState.CANCELLED, reason="cancelled before it started")
    if is_cancelled:
        return Status(seen=ObservedState.CANCELLED, reason=f"cancelled; its supervisor did not do it{also}")
    if is_late:
        return Status(
            seen=ObservedState.FAILED,
            reason=f"{time_limit_reason(job)}; its supervisor did not see to it{also}",
            failure=FailureKind.TIME_LIMIT,
        )
    if not job.path.is_dir():
        return Status(seen=ObservedState.LOST, reason=f"the job's directory is gone{also}")
    if claim is not None and claim.boot != boot_id() and not killed:
        return Status(seen=ObservedState.LOST, reason="the machine was restarted while it ran")
    subject = "its supervisor" if claim is None else f"its supervisor (pid {claim.pid})"
    forged = "; the exit file that is there is not the supervisor's" if os.path.lexists(job.path / "exit") else ""
    return Status(seen=ObservedState.LOST, reason=f"{subject} was killed{also}{forged}")


def time_limit_reason(job: JobDir) -> str:
    lease = job.lease()
    with contextlib.suppress(ValueError):  # a job may have changed its lease
        if lease is not None and (limit := spec_of(lease).resources.time_limit) is not None:
            return f"time limit of {show_duration(parse_duration_s(limit))} reached"
    return "time limit reached"


def output_limit_reason(job: JobDir, site_bytes: int) -> str:
    lease, limit = job.lease(), site_bytes
    with contextlib.suppress(ValueError):  # a job may have changed its lease
        limit = site_bytes if lease is None else output_limit_bytes(spec_of(lease), site_bytes)
    whose = "the site's local.output_max" if limit == site_bytes else "its own limits.ephemeral_storage"
    return f"its output is over {show_bytes(limit)} ({whose}); write less, or write to a file of the site"


def is_start_failure(end: ExitRecord) -> bool:
    """Whether the runtime could not make the container, so that nothing of the command ran. After `container_end`."""
    return end.container is not None and end.cause == "start" and end.code is None


def container_end(end: ExitRecord, *, last_words: str, memory_bytes: int = 0) -> tuple[ExitRecord, Cause]:
    """The end of the job, from the end of the runtime's client.

    `last_words`: the last line of its stderr; `memory_bytes`: what the container may use; 0: no limit.
    """
    if end.cause != "exit" or end.container is None:
        return end, Cause.JOB
    is_known = bool(end.container) or not end.is_container_left  # else the runtime did not answer in time
    if is_known and (failure := start_failure(end.code, end.container, last_words=last_words)):
        # The code 125 is the runtime's own, and says nothing of the job.
        code = None if failure[1] is Cause.CLUSTER else end.code
        return replace(end, cause="start", code=code, reason=failure[0]), failure[1]
    if end.code == RUNTIME_FAILED_CODE and not end.container:
        said = f": {last_words[:LAST_WORDS_MAX]}" if last_words else ""
        reason = f"it is not known whether its container began: the container's runtime does not answer{said}"
        return replace(end, cause="doubt", reason=reason), Cause.CLUSTER
    if ran_out_of_memory(end.container):
        return replace(end, code=None, signal=KILL, reason=OUT_OF_MEMORY_REASON), Cause.JOB
    if end.code is None or end.code not in SIGNAL_CODES:
        return end, Cause.JOB
    # Some runtimes do not notice that the kernel killed for lack of memory.
    is_doubtful = end.code == 128 + KILL and memory_bytes
    reason = f"{PERHAPS_OUT_OF_MEMORY}{show_bytes(memory_bytes)}" if is_doubtful else end.reason
    return replace(end, code=None, signal=end.code - 128, reason=reason), Cause.JOB
