"""Reports of an attempt, made from what the backend says of it. No I/O."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from switchyard.agent.backends import Status, native_name
from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.loop.allocation_check import checked_usage
from switchyard.agent.loop.clock import stamp
from switchyard.model.cluster.poll import Report
from switchyard.model.job.lifecycle import ObservedState

REASON_CHARS_MAX = 1000  # of a reason in a report; the log has all of it


def end_attempt(attempt: Attempt, status: Status) -> AttemptChange:
    """End an attempt of which nothing runs any more. A stopped attempt is not reported."""
    if attempt.is_stopped:
        return AttemptChange(replace(attempt, stage=Stage.SETTLED))
    began: tuple[TimedReport, ...] = ()
    if attempt.stage is not Stage.RUNNING and status.began_ago_us is not None:
        began = reports_of(attempt, Status(seen=ObservedState.RUNNING, ago_us=status.began_ago_us))
    return AttemptChange(replace(attempt, stage=Stage.ENDED), began + reports_of(attempt, status))


def reports_of(attempt: Attempt, status: Status) -> tuple[TimedReport, ...]:
    if attempt.is_stopped:
        return ()
    # An end without a native id is a refusal: the server gives the job to another cluster.
    native_id = None if status.is_unbegun else attempt.native_id
    report = Report(
        job=attempt.lease.job,
        fence=attempt.lease.fence,
        seen=status.seen,
        native_id=native_name(native_id) if native_id else None,
        exit_code=status.exit_code,
        signal=status.signal,
        reason=(status.note or status.reason)[:REASON_CHARS_MAX],
        cause=status.cause,
        usage=checked_usage(attempt.lease, status.usage),
        failure=status.failure.value if status.failure is not None and status.seen is ObservedState.FAILED else None,
    )
    return (TimedReport(report, stamp(ago_us=status.ago_us)),)


def without_details(report: Report) -> Report:
    """The report as servers take it that know neither allocations nor kinds of failures yet."""
    usage = report.usage
    if usage is not None and usage.allocated is not None:
        usage = msgspec.structs.replace(usage, allocated=None)
    if usage is report.usage and report.failure is None:
        return report
    return msgspec.structs.replace(report, usage=usage, failure=None)


def end_fields(change: AttemptChange) -> dict[str, object]:
    """What the log says of an end."""
    if not change.reports:
        return {"seen": "stopped"}
    end = change.reports[-1].report
    return {"seen": end.seen, "exit_code": end.exit_code, "reason": end.reason or None}
