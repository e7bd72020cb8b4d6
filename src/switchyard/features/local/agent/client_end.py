"""The end of a local job in a container, from the end of its runtime's client. Pure."""

from __future__ import annotations

from dataclasses import replace

from switchyard.agent.backends.shared.container_end import (
    KILL,
    LAST_WORDS_MAX,
    OUT_OF_MEMORY_REASON,
    RUNTIME_FAILED_CODE,
    SIGNAL_CODES,
    ran_out_of_memory,
    start_failure,
)
from switchyard.features.local.agent.jobdir import ExitRecord
from switchyard.model.job.retry import Cause
from switchyard.model.jobspec.quantity import show_bytes


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
    reason = f"perhaps it used more memory than its {show_bytes(memory_bytes)}" if is_doubtful else end.reason
    return replace(end, code=None, signal=end.code - 128, reason=reason), Cause.JOB
