"""Shows the wait for a job: its state changes as lines on stderr, a spinner on a terminal, its output at the end."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Sequence

from switchyard.cli.jobs.job_view import count_ended_tasks, format_job_line
from switchyard.cli.jobs.log_view import LogWriter
from switchyard.cli.jobs.task_view import format_task_line
from switchyard.cli.terminal.output import is_live, printable
from switchyard.cli.terminal.progress import ProgressBar, format_progress_bar
from switchyard.cli.terminal.table import format_duration, now_us
from switchyard.cli.terminal.terminal import clear_line
from switchyard.model.job.job import Job, Task, TaskCounts
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.wire.api import Output
from switchyard.sdk.client import CoreClient
from switchyard.sdk.jobs.handle import JobHandle
from switchyard.sdk.jobs.job_completion import as_completed

SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINNER_FRAME_S = 0.1


def wait_for_job(
    yard: CoreClient, job: str, *, timeout_s: float | None, quiet: bool = False, say_end: bool = True
) -> Job:
    """Wait for the end of a job. Print each change of its state to stderr, the last one only if `say_end`."""
    with Spinner(quiet=quiet) as spinner:
        printed: tuple[object, ...] = ()

        def say(seen: Job) -> Job:
            nonlocal printed
            # Changes of an array's tasks go to the spinner's bar: they would be thousands of lines.
            visible_state = (seen.state, seen.attempt, seen.cluster, seen.reason, seen.cancel_requested)
            if visible_state != printed and (say_end or seen.state not in FINAL_STATES):
                spinner.line(format_job_line(seen, now_us(), stream=sys.stderr))
            printed = visible_state
            spinner.text = f"{seen.id} {seen.state.value}" + (f" {_tasks_text(seen.tasks)}" if seen.tasks else "")
            return seen

        *_, last = map(say, yard.watch(job, timeout_s=timeout_s))
    return last


def wait_for_task(yard: CoreClient, job: str, index: int, *, timeout_s: float | None, quiet: bool = False) -> Task:
    """Wait for the end of one task of an array. Print each change of its state but the last one to stderr."""
    with Spinner(quiet=quiet) as spinner:
        for task in yard.watch_task(job, index, timeout_s=timeout_s):
            if task.state not in FINAL_STATES:
                spinner.line(format_task_line(job, task))
            spinner.text = f"{job}[{index}] {task.state.value}"
    return task


def wait_for_ends(handles: Sequence[JobHandle], timeout_s: float | None) -> None:
    """Wait until all these jobs have ended, with a progress bar."""
    with ProgressBar("ended", len(handles)) as progress:
        for done, _ in enumerate(as_completed(handles, timeout_s), start=1):
            progress.show(done)


def _tasks_text(tally: TaskCounts) -> str:
    failed = f", {tally.failed} failed" if tally.failed else ""
    return format_progress_bar(count_ended_tasks(tally), tally.total) + failed


class Spinner:
    """A spinner on stderr, if that is a terminal. Elsewhere only the lines are printed."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.text = ""
        self._quiet = quiet
        self._is_shown = is_live(sys.stderr) and not quiet
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._spin, name="spinner", daemon=True)

    def __enter__(self) -> Spinner:
        if self._is_shown:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._is_shown:
            self._thread.join()
            self._write("")

    def line(self, text: str) -> None:
        """Print a line above the spinner."""
        if not self._quiet:
            self._write(text + "\n")

    def _spin(self) -> None:
        started = time.monotonic()
        for frame in itertools.cycle(SPINNER_FRAMES):
            if self._stop.wait(SPINNER_FRAME_S):
                return
            passed = format_duration(int((time.monotonic() - started) * 1_000_000))
            # The cursor goes back to the start, so that whatever is printed next takes the spinner's place.
            self._write(f"{frame} {self.text} {passed}\r")

    def _write(self, text: str) -> None:
        with self._lock:
            if self._is_shown:
                clear_line(sys.stderr)
            sys.stderr.write(text)
            sys.stderr.flush()


def write_output(output: Output, *, to_stderr: bool = False) -> None:
    """Write the output of a job, filtered on a terminal, with a notice where the server left bytes out."""
    sys.stdout.flush()
    writer = LogWriter(printable(output.stream), to_stderr=to_stderr)
    for chunk in output.chunks:
        writer.write(chunk.offset, chunk.data)
    writer.write(output.size, b"")  # a notice if the last bytes were left out
    writer.end()
