"""Runs a Python function as a job: its code travels by cloudpickle, its result comes back as an output file.

Both sides must have the same Python, major and minor. The other side needs nothing else: cloudpickle is sent along.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

from switchyard.errors import BadRequest, Conflict, NotFound, YardError
from switchyard.features.functions.sdk import function_runner
from switchyard.model.job.job import State
from switchyard.sdk.jobs.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")

CALL_FILE = function_runner.CALL_FILE
RESULT_FILE = function_runner.RESULT_FILE
RUNNER_FILE = "switchyard_call.py"
STDERR_CHARS_SHOWN = 2000
NOT_KNOWN_HERE = "Return and raise only what can be imported here too, under the same name."
# The Python of this version if the machine has it under its own name, else whatever python3 is: the runner checks.
COPY_PREFIX = "SWITCHYARD_FUNCTION_VARIABLE_"
SHELL_LINE = 'command -v "$0" > /dev/null && exec {before}"$0" "$1"; exec {before}python3 "$1"'


class FunctionFailed(YardError):
    """The job of a function ended without a result."""


class FunctionRun(Generic[R]):
    """A function that runs as a job. `job` is the job's handle; the methods are those of a future."""

    def __init__(self, job: JobHandle) -> None:
        self.job = job
        self._outcome: tuple[bool, Any] | None = None

    def __repr__(self) -> str:
        return f"<FunctionRun {self.job.id} {self.job.state}>"

    def done(self) -> bool:
        """Whether the job has ended."""
        return self.job.is_final or self.job.refresh().state in (State.SUCCEEDED, State.FAILED, State.CANCELLED)

    def cancel(self) -> None:
        """Request the cancel of the job."""
        self.job.cancel()

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the end, and return what the function returned, or raise the exception that it raised.

        Raise FunctionFailed if the function called `sys.exit`, was interrupted or killed, or if its result or exception
        cannot be read here. Raise TimedOut after `timeout_s`. The result is unpickled here: run functions only on
        clusters that you trust.
        """
        is_value, value = self._wait(timeout_s)
        if not is_value:
            raise value
        return cast("R", value)

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for the end, and return what `result` would raise. None: the function returned.

        Raise FunctionFailed if the job left no result, and TimedOut after `timeout_s`.
        """
        is_value, value = self._wait(timeout_s)
        return None if is_value else value

    def _wait(self, timeout_s: float | None) -> tuple[bool, Any]:
        if self._outcome is None:
            ended = self.job.wait(timeout_s)
            with tempfile.TemporaryDirectory(prefix="yard-result-") as folder:
                try:
                    self.job.fetch(RESULT_FILE, to=folder, timeout_s=timeout_s)
                    data = (Path(folder) / RESULT_FILE).read_bytes()
                except (NotFound, Conflict, BadRequest, FileNotFoundError) as exc:
                    raise self._failure(ended.state, ended.reason) from exc
            self._outcome = _read_outcome(data)
        return self._outcome

    def _failure(self, state: State, reason: str) -> FunctionFailed:
        said = self.job.text("stderr")[-STDERR_CHARS_SHOWN:].strip() if state is State.FAILED else ""
        detail = f"Job {self.job.id} is {state.value} and left no result." + (f" {reason}" if reason else "")
        return FunctionFailed(detail + (f"\n{said}" if said else ""), next_step=f"`yard logs {self.job.id} --stderr`.")


def function_files(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the files of a call: the function and its arguments, the program that runs it, and cloudpickle."""
    try:
        import cloudpickle
    except ModuleNotFoundError as exc:
        raise BadRequest(
            "To send a function, cloudpickle is needed, which is not installed.",
            next_step="pip install 'switchyard[functions]'.",
        ) from exc
    try:
        call = cloudpickle.dumps((function, args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as exc:
        raise BadRequest(
            f"The function or its arguments cannot be sent: {exc}.",
            next_step="Open files and connections inside the function, and pass their names.",
        ) from exc
    package = Path(cloudpickle.__file__).parent
    modules = {f"cloudpickle/{file.name}": file.read_bytes() for file in sorted(package.glob("*.py"))}
    version = f"{python_version()}\n".encode()
    runner = Path(function_runner.__file__).read_bytes()
    return {CALL_FILE: version + call, RUNNER_FILE: runner, **modules}


def function_command(before: str = "") -> list[str]:
    """`before`: shell words before the command."""
    return ["/bin/sh", "-c", SHELL_LINE.format(before=before), f"python{python_version()}", RUNNER_FILE]


def python_version() -> str:
    """The version that both sides must have: major and minor."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _read_outcome(data: bytes) -> tuple[bool, Any]:
    """Return whether the function returned, and its value or exception."""
    try:
        kind, text, trace, pickled = pickle.loads(data)  # noqa: S301 — what the user's own job wrote
    except Exception as exc:
        raise FunctionFailed(f"The file of the result cannot be read: {_describe(exc)}.") from exc
    if kind == "exit":
        return False, _with_trace(FunctionFailed(_unpickle(pickled)), trace)
    try:
        value = _unpickle(pickled)
    except Exception as exc:  # unpickling imports modules and calls classes, which may raise anything
        if kind == "error":
            lost = FunctionFailed(f"The function raised {text}", next_step=NOT_KNOWN_HERE)
            return False, _with_trace(lost, trace)
        raise FunctionFailed(f"The result cannot be read here: {_describe(exc)}.", next_step=NOT_KNOWN_HERE) from exc
    if kind == "value":
        return True, value
    if not isinstance(value, Exception):
        value = FunctionFailed(f"The function raised {text}")
    return False, _with_trace(value, trace)


def _unpickle(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 — as above


def _describe(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"


def _with_trace(error: Exception, trace: str) -> Exception:
    error.add_note(f"It was raised in the job:\n{trace}".rstrip())
    return error
