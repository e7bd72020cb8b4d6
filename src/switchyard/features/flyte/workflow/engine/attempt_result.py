"""What an attempt of a task left: outputs, an error, or nothing; judged together with the end of its job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyteidl.core import errors_pb2, execution_pb2, literals_pb2
from google.protobuf.message import DecodeError

from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, AttemptFailure
from switchyard.features.flyte.workflow.values.nesting import is_too_deep

# Of a failure, which is stored with the node, its attempt and the nodes around it, and read with all nodes.
ERROR_CHARS_MAX, CODE_CHARS_MAX = 32_768, 256
OUTPUT_BYTES_MAX = 8 * 2**20  # of outputs.pb: clients read messages of 20 MiB
SIGKILL = 9


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How the job of an attempt ended. `files`: what it left of `outputs.pb`, `error.pb` and `futures.pb`.

    `files_problem`: why it is not known what it left. An error may be among that, so it is then no success.
    """

    state: str
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    files: Mapping[str, bytes] | None = None
    files_problem: str = ""


def judge_attempt(node_id: str, attempt: int, end: JobEnd, *, has_outputs: bool) -> AttemptEnd:
    """`has_outputs`: the task declares some. A user's error ends with exit code 0, and is in `error.pb`."""
    files = end.files or {}
    if end.state == "CANCELLED":
        return AttemptEnd(node_id, attempt)
    if "error.pb" in files:
        return AttemptEnd(node_id, attempt, failure=_user_error(files["error.pb"]))
    if end.state == "REJECTED":
        return AttemptEnd(node_id, attempt, failure=AttemptFailure("NoClusterFits", end.reason or "no cluster fits"))
    if end.state != "SUCCEEDED":
        return AttemptEnd(node_id, attempt, failure=_crash(end))
    if "futures.pb" in files:
        return AttemptEnd(node_id, attempt, futures=files["futures.pb"])
    if "outputs.pb" in files:
        return _with_outputs(node_id, attempt, files["outputs.pb"])
    if not has_outputs and not end.files_problem:
        return AttemptEnd(node_id, attempt, outputs=literals_pb2.LiteralMap())
    why = end.files_problem or "the job ended without outputs.pb and without error.pb"
    return AttemptEnd(node_id, attempt, failure=AttemptFailure("OutputsNotFound", why, is_recoverable=True))


def _with_outputs(node_id: str, attempt: int, body: bytes) -> AttemptEnd:
    if len(body) > OUTPUT_BYTES_MAX:
        why = f"outputs.pb has {len(body)} bytes; the most is {OUTPUT_BYTES_MAX}. Return large data as files."
        return AttemptEnd(node_id, attempt, failure=AttemptFailure("OutputsTooLarge", why))
    why = "outputs.pb is no message of outputs"
    try:
        outputs: Any = literals_pb2.LiteralMap.FromString(body)
        if not is_too_deep(outputs):
            return AttemptEnd(node_id, attempt, outputs=outputs)
        why = "the values in outputs.pb are nested too deeply"
    except DecodeError:
        pass
    return AttemptEnd(node_id, attempt, failure=AttemptFailure("OutputsUnreadable", why, is_recoverable=True))


def _user_error(body: bytes) -> AttemptFailure:
    document = errors_pb2.ErrorDocument()
    try:
        document.ParseFromString(body)
    except DecodeError:
        document.Clear()
    if not document.HasField("error"):
        return AttemptFailure("ErrorUnreadable", "error.pb is no message of an error", is_recoverable=True)
    error: Any = document.error
    return AttemptFailure(
        error.code[:CODE_CHARS_MAX] or "USER:Unknown",
        _shortened(error.message),
        is_recoverable=error.kind == errors_pb2.ContainerError.RECOVERABLE,
        is_system=error.origin == execution_pb2.ExecutionError.SYSTEM,
    )


def _shortened(text: str) -> str:
    """A text without its middle, if it is long: the last lines of a traceback say most."""
    if len(text) <= ERROR_CHARS_MAX:
        return text
    head, tail = text[: ERROR_CHARS_MAX // 4], text[-ERROR_CHARS_MAX // 2 :]
    return f"{head}\n… ({len(text) - len(head) - len(tail)} characters left out) …\n{tail}"


def _crash(end: JobEnd) -> AttemptFailure:
    """The process died, or its cluster gave it up."""
    is_timeout = "time limit" in end.reason
    code = "TimeoutExpired" if is_timeout else "Interrupted" if end.signal == SIGKILL else "Crashed"
    is_system = not is_timeout and (end.signal == SIGKILL or (end.exit_code is None and end.signal is None))
    return AttemptFailure(code, end.reason or "the job failed", is_recoverable=True, is_system=is_system)
