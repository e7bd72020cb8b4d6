"""Shows the demo's jobs: a live table on a terminal, lines of changes elsewhere. It knows no processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from switchyard.cli.jobs.job_view import format_exit, format_run_time
from switchyard.cli.terminal.output import has_colour, printable
from switchyard.cli.terminal.table import Column, format_table, now_us
from switchyard.cli.terminal.terminal import drawing
from switchyard.model.job.job import Job
from switchyard.model.job.lifecycle import FINAL_STATES

REDRAWS_PER_S = 8
COLUMNS = (
    Column("JOB"),
    Column("ASKS FOR", flexible=True),
    Column("CLUSTER"),
    Column("STATE"),
    Column("TIME", right=True),
    Column("EXIT", right=True),
    Column("REASON", flexible=True),
)


class DemoView(Protocol):
    """Shows the current jobs each time `show` is called."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, jobs: Sequence[Job]) -> None: ...


class StateChangeLines:
    """Prints one line for each change of a job's state."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen: dict[str, str] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, jobs: Sequence[Job]) -> None:
        done = sum(job.state in FINAL_STATES for job in jobs)
        for job in jobs:
            if self._seen.get(job.id) != job.state.value:
                self._seen[job.id] = job.state.value
                where = f" on {job.cluster}" if job.cluster else ""
                why = f": {job.reason}" if job.reason else ""
                line = f"{job.name:<11} {job.state.value}{where}{why}"
                passed = time.monotonic() - self._started
                print(f"{passed:5.1f}s  {done:>2}/{self._total}  {printable(line)}", flush=True)


class DemoTable:
    """A table of all jobs with a progress bar below, redrawn in place."""

    def __init__(self, total: int, *, asks: Mapping[str, str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._asks = asks
        self._bar = Progress(TextColumn("jobs ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("jobs", total=total)
        self._live = Live(console=Console(file=drawing(sys.stdout)), refresh_per_second=REDRAWS_PER_S)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, jobs: Sequence[Job]) -> None:
        from rich.console import Group
        from rich.text import Text

        now = now_us()
        rows = [
            [
                job.name,
                self._asks.get(job.name, ""),
                job.cluster or "",
                job.state.value,
                format_run_time(job, now),
                format_exit(job),
                job.reason,
            ]
            for job in jobs
        ]
        lines = format_table(COLUMNS, rows, width=self._live.console.width, coloured=has_colour())
        table = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")
        self._bar.update(self._task, completed=sum(job.state in FINAL_STATES for job in jobs))
        self._live.update(Group(table, Text(), self._bar.get_renderable()))
