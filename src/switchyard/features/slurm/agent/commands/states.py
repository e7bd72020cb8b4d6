"""The table of Slurm's job states and what they mean here. Pure.

The states are those of squeue(1) and sacct(1), "JOB STATE CODES", of versions 22.05 to 26.05. Another state is UNKNOWN
and reported with its text: it is neither success nor failure.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from switchyard.agent.backends import Status, signal_name
from switchyard.agent.backends.shared.work_folders import UNENTERED_TEXT
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

WAITS, RUNS = ObservedState.SUBMITTED, ObservedState.RUNNING
SEEN_BY_STATE: dict[str, ObservedState] = {
    "PENDING": WAITS,
    "CONFIGURING": WAITS,
    "POWER_UP_NODE": WAITS,
    "REQUEUED": WAITS,
    "REQUEUE_FED": WAITS,
    "REQUEUE_HOLD": WAITS,
    "RESV_DEL_HOLD": WAITS,
    "SPECIAL_EXIT": WAITS,
    "EXPEDITING": WAITS,
    "RUNNING": RUNS,
    "COMPLETING": RUNS,  # its processes are being ended: the final state follows
    "RESIZING": RUNS,
    "SIGNALING": RUNS,
    "STAGE_OUT": RUNS,
    "STOPPED": RUNS,
    "SUSPENDED": RUNS,
    "COMPLETED": ObservedState.SUCCEEDED,
    "BOOT_FAIL": ObservedState.FAILED,
    "CANCELLED": ObservedState.CANCELLED,
    "DEADLINE": ObservedState.FAILED,
    "FAILED": ObservedState.FAILED,
    "LAUNCH_FAILED": ObservedState.FAILED,
    "NODE_FAIL": ObservedState.FAILED,
    "OUT_OF_MEMORY": ObservedState.FAILED,
    "PREEMPTED": ObservedState.FAILED,
    "RECONFIG_FAIL": ObservedState.FAILED,
    "REVOKED": ObservedState.CANCELLED,  # in a federation: another cluster ran it
    "TIMEOUT": ObservedState.FAILED,
}
# Failures that Slurm names: the reason to show, the cause and the kind.
FAULTS: dict[str, tuple[str, Cause, FailureKind]] = {
    "BOOT_FAIL": ("its node could not be booted", Cause.CLUSTER, FailureKind.NODE_LOST),
    "DEADLINE": ("its deadline passed before it ended", Cause.JOB, FailureKind.OTHER),
    "LAUNCH_FAILED": ("it could not be launched", Cause.CLUSTER, FailureKind.START),
    "NODE_FAIL": ("node failure", Cause.CLUSTER, FailureKind.NODE_LOST),
    "OUT_OF_MEMORY": ("out of memory", Cause.JOB, FailureKind.OUT_OF_MEMORY),
    "PREEMPTED": ("preempted by another job", Cause.PREEMPTED, FailureKind.PREEMPTED),
    "RECONFIG_FAIL": ("its nodes could not be configured", Cause.CLUSTER, FailureKind.START),
    "TIMEOUT": ("time limit reached", Cause.JOB, FailureKind.TIME_LIMIT),
}
RERUN_CODE = 96  # exit code of our script when it may not run the command: mostly a second start (script.py)
NO_CWD_CODE = 1  # exit code of our script when it cannot enter the working directory
# Reasons set by the agent: second start refused; killed, known only by the script's note; no working directory; no
# folder of the agent's on the node.
RERUN_REASON, FORGOTTEN_REASON, NO_CWD_REASON, NO_FOLDER_REASON = "rerun", "forgotten", "cwd", "folder"
UNENTERED_REASONS = frozenset({NO_CWD_REASON, NO_FOLDER_REASON})
KILL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM})  # how Slurm and the kernel kill
# no signal: slurmd reports it if it cannot open the output or does not know the account
LAUNCH_FAILURE_SIGNAL = 53
ENDED_STATES = frozenset(word for word, seen in SEEN_BY_STATE.items() if seen not in (WAITS, RUNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJobFacts:
    """What Slurm reports of one job or task, from any command."""

    state: str
    exit_code: int = 0
    signal: int = 0
    started_s: int | None = None  # since 1970
    ended_s: int | None = None
    nodes: str = ""
    reason: str = ""
    memory_bytes_max: int | None = None
    restarts: int = 0  # by Slurm itself
    allocated: GivenResources | None = None  # of one that waits: what it asks for

    @property
    def is_over(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def has_begun(self) -> bool:
        return bool(self.nodes) and self.started_s is not None and self.state != "PENDING"

    @property
    def is_second_start(self) -> bool:
        return self.exit_code == RERUN_CODE or self.restarts > 0

    @property
    def is_by_force(self) -> bool:
        return self.signal in KILL_SIGNALS

    @property
    def elapsed_s(self) -> int | None:
        if self.started_s is None or self.ended_s is None:
            return None
        return max(0, self.ended_s - self.started_s)


def status_of(facts: SlurmJobFacts, *, now_s: float, is_cancel_asked: bool = False) -> Status:
    """The status that the agent derives from the facts."""
    seen = SEEN_BY_STATE.get(facts.state)
    if seen is None:
        return Status(seen=ObservedState.UNKNOWN, text=facts.state)
    if seen is WAITS:
        return Status(seen=seen, text=facts.state, reason=_pending_reason(facts))
    if seen is RUNS:
        has_gpus = facts.has_begun and facts.allocated is not None and facts.allocated.gpus
        usage = Usage(nodes=facts.nodes, allocated=facts.allocated) if has_gpus else None
        return Status(seen=seen, text=facts.state, ago_us=_ago_us(facts.started_s, now_s), usage=usage)
    if seen is ObservedState.FAILED and facts.exit_code == 0 and facts.signal == 0 and facts.state == "FAILED":
        words = "the cluster says that it failed, not why" + _reason_suffix(facts)
        return _failed(facts, now_s, words, Cause.CLUSTER, None)
    if seen is ObservedState.FAILED:
        return _failed(facts, now_s, *_fault(facts))
    if seen is ObservedState.CANCELLED:
        reason = "cancelled" if is_cancel_asked else f"cancelled at the cluster{_cancelled_by(facts)}"
        return _end(facts, now_s, seen=seen, reason=reason, cause=Cause.CLUSTER, exit_code=None, number=None)
    return _end(facts, now_s, seen=seen, reason="", cause=Cause.JOB, exit_code=0, number=None)


def _fault(facts: SlurmJobFacts) -> tuple[str, Cause, FailureKind | None]:
    if facts.state in FAULTS:
        return FAULTS[facts.state]
    if not facts.nodes:
        return f"the cluster did not start it{_reason_suffix(facts)}", Cause.CLUSTER, FailureKind.START
    if facts.signal == LAUNCH_FAILURE_SIGNAL:
        words = "its node could not launch it; often its output folder cannot be written there"
        return words, Cause.CLUSTER, FailureKind.START
    if facts.reason == RERUN_REASON:
        return "the cluster started it a second time, which was refused: it may have run in part", Cause.CLUSTER, None
    if facts.reason == NO_CWD_REASON:
        return UNENTERED_TEXT, Cause.JOB, FailureKind.START
    if facts.reason == NO_FOLDER_REASON:
        words = "its node could not enter the folder that the agent made for it: the command did not run"
        return words, Cause.CLUSTER, FailureKind.START
    code, number = _ending(facts)
    if facts.reason == FORGOTTEN_REASON and number:
        return f"the cluster does not know it any more; it was killed by {signal_name(number)}", Cause.CLUSTER, None
    return (f"killed by {signal_name(number)}" if number else f"exit code {code}"), Cause.JOB, None


def _failed(facts: SlurmJobFacts, now_s: float, reason: str, cause: Cause, failure: FailureKind | None) -> Status:
    is_own_word = facts.reason not in (RERUN_REASON, *UNENTERED_REASONS) and facts.signal != LAUNCH_FAILURE_SIGNAL
    has_own_end = facts.state == "FAILED" and facts.nodes and is_own_word
    code, number = _ending(facts) if has_own_end else (None, None)
    end = _end(facts, now_s, seen=ObservedState.FAILED, reason=reason, cause=cause, exit_code=code, number=number)
    return replace(end, failure=failure)


def split_shell_code(code: int) -> tuple[int, int]:
    """Exit code and signal of a shell's code: above 128 it means a signal, even if the command used that code."""
    return (0, code - 128) if 128 < code <= 128 + 64 else (code, 0)


def _ending(facts: SlurmJobFacts) -> tuple[int | None, int | None]:
    """Exit code or signal; Slurm reports both."""
    return (None, facts.signal) if facts.signal else (facts.exit_code, None)


def _end(
    facts: SlurmJobFacts,
    now_s: float,
    seen: ObservedState,
    reason: str,
    cause: Cause,
    *,
    exit_code: int | None,
    number: int | None,
) -> Status:
    has_begun = bool(facts.nodes) and facts.started_s is not None
    return Status(
        seen=seen,
        text=facts.state,
        reason=reason,
        exit_code=exit_code,
        signal=number,
        ago_us=_ago_us(facts.ended_s, now_s),
        began_ago_us=_ago_us(facts.started_s, now_s) if has_begun else None,
        cause=cause,
        usage=Usage(
            elapsed_s=facts.elapsed_s or 0,
            memory_bytes_max=facts.memory_bytes_max,
            nodes=facts.nodes,
            allocated=facts.allocated,
        )
        if has_begun
        else None,
    )


def _ago_us(at_s: int | None, now_s: float) -> int:
    return 0 if at_s is None else max(0, int((now_s - at_s) * 1_000_000))


def _pending_reason(facts: SlurmJobFacts) -> str:
    return "" if facts.reason in ("", "None") else f"waits at the cluster: {facts.reason}"


def _reason_suffix(facts: SlurmJobFacts) -> str:
    return f": {facts.reason}" if facts.reason not in ("", "None") else ""


def _cancelled_by(facts: SlurmJobFacts) -> str:
    return f" by uid {facts.reason.removeprefix('by ')}" if facts.reason.startswith("by ") else ""
