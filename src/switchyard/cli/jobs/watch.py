"""`yard watch`: show jobs as they change, as a live table on a terminal or as lines in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import lru_cache
from shutil import get_terminal_size

from switchyard.cli.jobs.job_view import JOB_COLUMNS, format_job_line, format_job_row, print_event
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import has_colour, is_live, paint, print_notice, printable
from switchyard.cli.terminal.parser import Parser, add_labels, add_shared
from switchyard.cli.terminal.table import format_table, now_us
from switchyard.cli.terminal.terminal import drawing
from switchyard.errors import BadRequest, YardError
from switchyard.model.job.job import Job
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.wire.api import Event
from switchyard.sdk.client import CoreClient

ROWS_MAX = 200  # of the live table, however tall the screen is
IDS_MAX = 90  # jobs in one request by their ids
POLL_S_MIN = 0.5  # between two fetches, however many events come
REDRAW_S = 1.0  # so that ages stay current
LABEL_CACHE_MAX = 10_000  # jobs whose labels are cached

EXAMPLES = """\
  yard watch                               the newest jobs, as they change
  yard watch 01JCQ0V7 01JCQ0W2             these, until they have ended
  yard watch --label run=7 --project physics
  yard watch --after 41250 -o json         one JSON object per event, from a number on, without end"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    if len(args.job) > IDS_MAX:
        raise BadRequest(
            f"At most {IDS_MAX} ids can be watched at once.", next_step="Watch them by a label: --label K=V."
        )
    with connect(args) as yard:
        ids = [yard.job(job).id for job in args.job]
        if is_live(sys.stdout) and not args.output:
            _LiveTable(yard, args, ids).run()
        else:
            _print_lines(yard, args, ids)
    return 0


def _print_lines(yard: CoreClient, args: Namespace, ids: list[str]) -> None:
    """Print one line per event. For named jobs, print their states first and stop when all have ended."""
    after = yard.newest_event() if args.after is None else args.after
    live_ids = set(ids)
    for job in map(yard.job, ids):
        if not args.output and args.after is None:
            print(format_job_line(job, now_us()), flush=True)
        if job.state in FINAL_STATES and args.after is None:
            live_ids.discard(job.id)
    if ids and not live_ids:
        return
    for event in _events(yard, args, ids, after):
        print_event(event, args.output)
        if event.state in FINAL_STATES:
            live_ids.discard(event.job)
            if ids and not live_ids:
                return


def _events(yard: CoreClient, args: Namespace, ids: list[str], after: int) -> Iterator[Event]:
    """Yield the events of the selected jobs after this event number."""
    labels_wanted = dict(args.label)

    @lru_cache(maxsize=LABEL_CACHE_MAX)
    def has_labels(job: str) -> bool:
        labels = yard.job(job).labels
        return all(labels.get(key) == value for key, value in labels_wanted.items())

    single_job = ids[0] if len(ids) == 1 else None
    for event in yard.follow(after=after, job=single_job, project=args.project, on_trouble=_print_trouble):
        if (not ids or event.job in ids) and (not labels_wanted or has_labels(event.job)):
            yield event


def _print_trouble(trouble: YardError | None) -> None:
    print_notice(f"{trouble.detail} Trying again…" if trouble else "Connected again; nothing was missed.")


class _LiveTable:
    """The live view. A thread follows the events and signals changes; the main thread fetches the jobs and draws."""

    def __init__(self, yard: CoreClient, args: Namespace, ids: list[str]) -> None:
        self._yard = yard
        self._args = args
        self._ids = ids
        self._jobs: list[Job] = []
        self._last_event = yard.newest_event() if args.after is None else args.after
        self._trouble: YardError | None = None
        self._fatal: YardError | None = None
        self._change = threading.Event()

    def run(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._fetch_jobs()
        threading.Thread(target=self._follow, name="follow", daemon=True).start()
        with Live(
            console=Console(file=drawing(sys.stdout), highlight=False), auto_refresh=False, transient=False
        ) as live:
            while True:
                live.update(Text.from_ansi("\n".join(self._lines())), refresh=True)
                if self._ids and all(job.state in FINAL_STATES for job in self._jobs):
                    return
                if self._fatal is not None:
                    raise self._fatal
                started = time.monotonic()
                if self._change.wait(REDRAW_S):
                    self._change.clear()
                    self._fetch_jobs()
                    time.sleep(max(0.0, POLL_S_MIN - (time.monotonic() - started)))

    def _follow(self) -> None:
        try:
            single_job = self._ids[0] if len(self._ids) == 1 else None
            for event in self._yard.follow(
                after=self._last_event, job=single_job, project=self._args.project, on_trouble=self._on_trouble
            ):
                self._last_event = event.seq
                if not self._ids or event.job in self._ids:
                    self._change.set()
        except YardError as exc:
            self._fatal = exc
            self._change.set()

    def _on_trouble(self, trouble: YardError | None) -> None:
        self._trouble = trouble
        self._change.set()

    def _fetch_jobs(self) -> None:
        """Fetch the current jobs. While the server is away, keep the old ones."""
        try:
            if self._ids:
                by_id = {job.id: job for job in self._yard.jobs(ids=self._ids)}
                self._jobs = [by_id[job] for job in self._ids if job in by_id] or self._jobs
            else:
                rows = min(ROWS_MAX, get_terminal_size().lines - 3)
                labels = dict(self._args.label)
                self._jobs = list(self._yard.jobs(labels=labels, project=self._args.project, limit=max(1, rows)))
        except YardError as exc:
            if not exc.transient:
                raise
            self._trouble = exc
            self._change.set()  # look again

    def _lines(self) -> list[str]:
        now = now_us()
        width = get_terminal_size().columns
        shown = self._jobs[: max(1, get_terminal_size().lines - 3)]
        table = format_table(
            JOB_COLUMNS, [format_job_row(job, now) for job in shown], width=width, coloured=has_colour()
        )
        counts: dict[str, int] = {}
        for job in self._jobs:
            counts[job.state.value] = counts.get(job.state.value, 0) + 1
        summary = " · ".join(f"{count} {state.lower()}" for state, count in sorted(counts.items())) or "no jobs yet"
        foot = (
            printable(f"{self._trouble.detail} Trying again…")
            if self._trouble
            else f"{summary} · event {self._last_event}"
        )
        return [*table, paint(foot[: max(1, width - 1)], "dim")]


def _parser() -> Parser:
    parser = Parser("yard watch", "Watch jobs change, until those named have ended, or Ctrl-C.", examples=EXAMPLES)
    parser.add_argument("job", nargs="*", metavar="ID", help="a job's id, or enough of its start (default: all jobs)")
    add_labels(parser, "only with this label; repeatable")
    parser.add_argument("--project", metavar="NAME", help="only of this project")
    parser.add_argument(
        "--after", type=_parse_event_number, metavar="SEQ", help="begin after this event's number (default: now)"
    )
    add_shared(parser, outputs=("json",))
    return parser


def _parse_event_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadRequest(f"{text!r} is not the number of an event.")
    return int(text)
