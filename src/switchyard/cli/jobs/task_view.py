"""Formats one task of an array: as fields, as one line, and as an exit code. It calls no server."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.cli.jobs.job_view import EXIT_CANCELLED, format_exit, format_file_count, keeps_outputs
from switchyard.cli.terminal.output import emit, paint_state, printable
from switchyard.cli.terminal.table import print_fields
from switchyard.errors import EXIT_ERROR, EXIT_OK
from switchyard.model.files.files import OutputState
from switchyard.model.job.job import Job, State, Task, TaskAttempt
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.sdk.files.absent_outputs import has_task_left_files


def print_task(job: Job, task: Task) -> None:
    """Print all fields of a task."""
    fields = [
        ("id", f"{job.id}[{task.index}]"),
        ("name", job.name),
        ("state", task.state.value),
        ("reason", task_reason(task)),
        ("cluster", task.cluster or ""),
        ("exit", format_exit(task)),
        ("output files", format_task_outputs(job, task)),
        ("attempts", str(task.attempts) if task.attempts else ""),
        *((f"attempt {number}", format_attempt(attempt)) for number, attempt in numbered_attempts(task)),
        ("fence", str(task.fence) if task.fence else ""),
        ("alternative", str(task.alternative or "")),
        ("array", f"{job.array} ({job.state.value}): yard show {job.id}"),
    ]
    print_fields(fields)


def format_task_outputs(job: Job, task: Task) -> str:
    """`3 files, 1.2MiB: yard fetch '01JCQ0V7…[4]'`, or why they are not there; empty: no files are expected."""
    text = format_task_files(job, task)
    if task.outputs is None:
        return f"{text}: its cluster has not spoken of them" if text else ""
    if task.outputs.state is OutputState.READY:
        text += f", {show_bytes(task.outputs.bytes)}: yard fetch '{job.id}[{task.index}]'"
    word = {OutputState.READY: "; not all: ", OutputState.UPLOADING: "; delayed: "}.get(task.outputs.state, ": ")
    return printable(text + (f"{word}{task.outputs.error}" if task.outputs.error else ""))


def format_task_files(job: Job, task: Task) -> str:
    """`3 files`, `on their way`, `cannot be had` or `none yet`: the output files of a task for a cell of a table."""
    if task.outputs is None:
        return "none yet" if keeps_outputs(job) and has_task_left_files(task) else ""
    if task.outputs.state is OutputState.READY:
        return format_file_count(task.outputs.files)
    return "on their way" if task.outputs.state is OutputState.UPLOADING else "cannot be had"


def emit_jobs_and_tasks(items: Sequence[tuple[str, Job | Task]], form: str | None) -> bool:
    """Print jobs and tasks in the form of `-o`, each with the id of its job. Return False without `-o`."""
    if form == "name":
        for job, item in items:
            print(f"{job}[{item.index}]" if isinstance(item, Task) else job)
        return True
    messages = [item for _, item in items]
    return emit(messages[0] if len(messages) == 1 else messages, form)


def numbered_attempts(task: Task) -> list[tuple[int, TaskAttempt]]:
    """Return the earlier attempts with their numbers. Of many, only the last ones are known."""
    is_last_earlier = bool(task.earlier) and task.earlier[-1].fence == task.fence
    first = task.attempts - len(task.earlier) + is_last_earlier
    return list(enumerate(task.earlier, start=max(first, 1)))


def format_attempt(attempt: TaskAttempt) -> str:
    """`failed on alpha, exit 3: no licence`."""
    where = f" on {attempt.cluster}" if attempt.cluster else ""
    code = f", exit {format_exit(attempt)}" if format_exit(attempt) else ""
    return (attempt.ended or "ended") + where + code + (f": {attempt.reason}" if attempt.reason else "")


def format_earlier(task: Task) -> str:
    """`1: failed on alpha, exit 3; 2: lost on beta`: the earlier attempts for a cell of a table."""
    return "; ".join(f"{number}: {format_attempt(attempt)}" for number, attempt in numbered_attempts(task))


def task_reason(task: Task) -> str:
    """Return why the task is in its state."""
    is_ending = task.cancel_requested and task.state not in FINAL_STATES
    return "cancel requested" if is_ending else task.reason


def format_task_line(job: str, task: Task) -> str:
    """Format the task's state, cluster and reason as one line."""
    where = f" on {task.cluster}" if task.cluster and task.state is not State.PENDING else ""
    code = f", exit {format_exit(task)}" if format_exit(task) not in ("", "0") else ""
    tries = f", attempt {task.attempts}" if task.attempts > 1 else ""
    why = f": {task_reason(task)}" if task_reason(task) else ""
    return f"{job}[{task.index}]  {paint_state(task.state.value)}" + printable(f"{where}{tries}{code}{why}")


def task_exit_code(task: Task) -> int:
    """Return the exit code of a command that waited for this task: the task's own code if it has one."""
    if task.state is State.SUCCEEDED:
        return EXIT_OK
    if task.state is State.CANCELLED:
        return EXIT_CANCELLED
    if task.signal:
        return (128 + task.signal) & 0xFF
    return task.exit_code if task.exit_code and 0 < task.exit_code < 256 else EXIT_ERROR
