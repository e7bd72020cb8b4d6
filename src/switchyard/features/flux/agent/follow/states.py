"""The table of what a Flux job's events and exceptions mean here. Pure.

The events are those of RFC 21. The exceptions are those that flux-core and flux-sched raise. An exception that the
table does not have is a failure, shown in Flux's words. A job without events is UNKNOWN. A job is over at its event
`clean`: only then are its processes and resources gone.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from switchyard.agent.backends import Status, signal_name
from switchyard.features.flux.agent.follow.events import FluxJobFacts, JobException
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

WAITS, RUNS = ObservedState.SUBMITTED, ObservedState.RUNNING
SEEN_BY_EVENT: dict[str, ObservedState] = {
    "submit": WAITS,
    "depend": WAITS,
    "priority": WAITS,  # the scheduler has it
    "alloc": WAITS,  # it has resources; its prolog may run
    "start": RUNS,
    "finish": RUNS,  # its processes have ended: `clean` follows
}
SCHEDULER_HAS_IT = "SCHED"
TEXT_BY_EVENT = {
    "submit": "DEPEND",
    "depend": "PRIORITY",
    "priority": SCHEDULER_HAS_IT,
    "alloc": "ALLOC",
    "start": "RUN",
    "finish": "CLEANUP",
}
# Exceptions that end a job: the reason to show before Flux's own note, and the cause.
EXCEPTIONS: dict[str, tuple[str, Cause]] = {
    "alloc": ("the scheduler refused it", Cause.CLUSTER),
    "dependency": ("a dependency at the cluster failed", Cause.CLUSTER),
    "depend": ("a dependency at the cluster failed", Cause.CLUSTER),
    "epilog": ("its epilog failed", Cause.CLUSTER),
    "exec": ("it could not be launched", Cause.CLUSTER),
    "preempt": ("preempted by another job", Cause.PREEMPTED),
    "prolog": ("its prolog failed", Cause.CLUSTER),
    "scheduler-restart": ("the scheduler restarted and could not keep it", Cause.CLUSTER),
    "timeout": ("time limit reached", Cause.JOB),
    "validate": ("the cluster did not accept it", Cause.CLUSTER),
}
# The kinds of failures that their exceptions tell.
FAILURES = {
    "alloc": FailureKind.START,
    "exec": FailureKind.START,
    "preempt": FailureKind.PREEMPTED,
    "prolog": FailureKind.START,
    "timeout": FailureKind.TIME_LIMIT,
    "validate": FailureKind.START,
}
CANCEL = "cancel"
DENIED = "alloc"  # the scheduler has no such resources now: nodes are drained, or not up yet, or in another queue
# Exceptions by which a job may end before its command began, although the same job may run at another time.
LAUNCH_EXCEPTIONS = frozenset({"exec", "prolog", "scheduler-restart"})
COMMAND_NOT_RUN_CODES = (126, 127)  # of the job shell, for a command that it cannot run or find
SHELL_SIGNAL_BASE = 128  # the job shell reports a signal as 128 and the number


def status_of(facts: FluxJobFacts, *, now_s: float, is_cancel_asked: bool = False) -> Status:
    """The status that the agent derives from the facts."""
    if facts.is_over:
        return _end_status(facts, now_s, is_cancel_asked=is_cancel_asked)
    seen = SEEN_BY_EVENT.get(facts.phase)
    if seen is None:
        return Status(seen=ObservedState.UNKNOWN, text="no event yet")
    text = TEXT_BY_EVENT[facts.phase]
    if seen is RUNS:
        return Status(seen=seen, text=text, ago_us=_ago_us(facts.started_s, now_s))
    return Status(seen=seen, text=text)


def is_launch_failure(status: Status) -> bool:
    """Whether the cluster failed to run the job. Its command may have begun: the events do not tell."""
    is_cluster_fault = status.seen is ObservedState.FAILED and status.cause is Cause.CLUSTER
    return is_cluster_fault and status.text in LAUNCH_EXCEPTIONS


def _end_status(facts: FluxJobFacts, now_s: float, *, is_cancel_asked: bool) -> Status:
    if facts.exception is not None:
        return _ended_by_exception(facts, facts.exception, now_s, is_cancel_asked=is_cancel_asked)
    if facts.wait_status is None:
        return _end(
            facts,
            now_s,
            seen=ObservedState.FAILED,
            reason="the cluster says that it ended, not how",
            cause=Cause.CLUSTER,
        )
    code, number = _ending(facts)
    if code == 0:
        return _end(facts, now_s, seen=ObservedState.SUCCEEDED, reason="", cause=Cause.JOB, code=0)
    if facts.is_taskless:  # the code or the signal is the shell's, not the command's
        reason = "Flux's job shell ended before the command began; `flux job attach` shows why"
        return _end(facts, now_s, seen=ObservedState.FAILED, reason=reason, cause=Cause.CLUSTER)
    reason = f"killed by {signal_name(number)}" if number else f"exit code {code}"
    return _end(facts, now_s, seen=ObservedState.FAILED, reason=reason, cause=Cause.JOB, code=code, number=number)


def _ended_by_exception(facts: FluxJobFacts, exception: JobException, now_s: float, *, is_cancel_asked: bool) -> Status:
    if exception.type == CANCEL:
        reason = "cancelled" if is_cancel_asked else f"cancelled at the cluster{_suffix(exception)}"
        return _end(facts, now_s, seen=ObservedState.CANCELLED, reason=reason, cause=Cause.CLUSTER)
    if exception.type == DENIED and facts.started_s is None:
        reason = f"{EXCEPTIONS[DENIED][0]}{_suffix(exception)}"
        return _end(
            facts, now_s, seen=ObservedState.RETURNED, reason=reason, cause=Cause.CLUSTER
        )  # another cluster may have them
    code = os.waitstatus_to_exitcode(facts.wait_status) if facts.wait_status is not None else None
    if exception.type == "exec" and code in COMMAND_NOT_RUN_CODES:
        reason = f"its command could not be run{_suffix(exception)}"
        end = _end(facts, now_s, seen=ObservedState.FAILED, reason=reason, cause=Cause.JOB, code=code)
        return replace(end, failure=FailureKind.START)
    reason, cause = EXCEPTIONS.get(exception.type, (f"the cluster ended it ({exception.type})", Cause.CLUSTER))
    failure = FAILURES.get(exception.type)
    if exception.type == "exec" and facts.started_s is not None:
        reason, failure = "the cluster could not run it to its end", FailureKind.CLUSTER
    end = _end(facts, now_s, seen=ObservedState.FAILED, reason=f"{reason}{_suffix(exception)}", cause=cause)
    return replace(end, failure=failure)


def _ending(facts: FluxJobFacts) -> tuple[int | None, int | None]:
    """Exit code or signal. The job shell reports a signal as a code, and only the task's own status tells them apart.

    Without the task's status, a code above 128 that names a signal counts as this signal.
    """
    assert facts.wait_status is not None
    code = os.waitstatus_to_exitcode(facts.wait_status)
    if code < 0:
        return None, -code
    number = code - SHELL_SIGNAL_BASE
    if not 0 < number < signal.NSIG:
        return code, None
    if facts.task_status is not None and os.waitstatus_to_exitcode(facts.task_status) == code:
        return code, None
    return None, number


def _end(
    facts: FluxJobFacts,
    now_s: float,
    seen: ObservedState,
    reason: str,
    cause: Cause,
    *,
    code: int | None = None,
    number: int | None = None,
) -> Status:
    ended_s = facts.finished_s if facts.finished_s is not None else facts.ended_s
    elapsed_s = 0.0 if facts.started_s is None or ended_s is None else max(0.0, ended_s - facts.started_s)
    has_begun = facts.started_s is not None
    return Status(
        seen=seen,
        text=facts.exception.type if facts.exception else "INACTIVE",
        reason=reason,
        exit_code=code,
        signal=number,
        ago_us=_ago_us(ended_s, now_s),
        began_ago_us=_ago_us(facts.started_s, now_s) if has_begun else None,
        cause=cause,
        usage=Usage(elapsed_s=int(elapsed_s), nodes=facts.nodes, allocated=facts.allocated) if has_begun else None,
    )


def _suffix(exception: JobException) -> str:
    return f": {exception.note}" if exception.note else ""


def _ago_us(at_s: float | None, now_s: float) -> int:
    return 0 if at_s is None else max(0, int((now_s - at_s) * 1_000_000))
