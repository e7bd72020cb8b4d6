"""What the files of one local job say of how it stands or how it ended, as a status. It reads, and ends nothing."""

from __future__ import annotations

import contextlib
import signal

from switchyard.agent.backends import Status
from switchyard.agent.backends.jobdir import ExitRecord, JobDir, SupervisorClaim
from switchyard.agent.need import spec_of
from switchyard.model.lifecycle import ObservedState
from switchyard.model.quantity import parse_duration_s
from switchyard.model.retry import Cause


def running_status(job: JobDir, claim: SupervisorClaim, *, is_told: bool) -> Status:
    """`is_told`: the supervisor said that the command runs."""
    started = job.started(claim)
    if started is None and not is_told:
        return Status(seen=ObservedState.SUBMITTED, text="starting")
    return Status(seen=ObservedState.RUNNING, ago_us=started.age_us if started else 0)


def ended_status(job: JobDir, end: ExitRecord, claim: SupervisorClaim | None) -> Status:
    seen, reason = ObservedState.FAILED, end.reason
    if end.cause == "cancel":
        seen, reason = ObservedState.CANCELLED, "cancelled"
    elif end.cause == "time-limit":
        reason = time_limit_reason(job)
    elif end.cause == "stopped":
        reason = "its supervisor was told to end by SIGTERM, not by the agent"
    elif end.cause == "exit" and end.code == 0:
        seen = ObservedState.SUCCEEDED
    elif end.cause == "exit" and end.signal is not None:
        reason = f"killed by {signal_name(end.signal)}"
    elif end.cause == "exit":
        reason = f"exit code {end.code}"
    extra = f"; {end.reason}" if end.reason and end.reason not in reason else ""
    started = job.started(claim)
    return Status(
        seen=seen,
        reason=reason + extra,
        exit_code=end.code,
        signal=end.signal,
        ago_us=end.at.age_us,
        began_ago_us=started.age_us if started else None,
        cause=Cause.CLUSTER if end.cause == "group" else Cause.JOB,
    )


def time_limit_reason(job: JobDir) -> str:
    lease = job.lease()
    with contextlib.suppress(ValueError):  # a job may have changed its lease
        if lease is not None and (limit := spec_of(lease).resources.time_limit) is not None:
            return f"time limit of {show_duration(parse_duration_s(limit))} reached"
    return "time limit reached"


def show_duration(seconds: int) -> str:
    """10s, 1m30s, 2h: as people write it."""
    parts = [(seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
