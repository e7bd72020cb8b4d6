"""`yard hold`, `yard release` and `yard priority`: change jobs that have not started yet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from switchyard.cli.jobs.job_action import JobAction, run_action
from switchyard.cli.jobs.job_selector import add_job_targets
from switchyard.cli.jobs.job_view import count_ended_tasks, format_job_line
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import printable
from switchyard.cli.terminal.parser import Parser, add_shared, no_arguments
from switchyard.cli.terminal.table import now_us
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import LIVE_STATES


class _Change(NamedTuple):
    """One command: its help, and what it does."""

    about: str
    examples: str
    action: JobAction[Job]
    add_arguments: Callable[[Parser], None] = no_arguments


def _add_priority(parser: Parser) -> None:
    parser.add_argument("priority", type=int, metavar="N", help="higher goes first; 0 is usual")


def _format_priority(job: Job) -> str:
    return f"{job.id}  priority {job.priority}  " + printable(f"{job.state.value} {job.name}")


def _has_waiting_work(job: Job) -> bool:
    """Whether no cluster has the job; of an array, whether tasks wait."""
    return job.leased_us is None if job.tasks is None else job.tasks.waiting > 0


def _format_held(job: Job) -> str:
    if job.tasks is None:
        return format_job_line(job, now_us())
    ended = count_ended_tasks(job.tasks)
    parts = [
        f"{job.tasks.waiting} held",
        f"{job.tasks.live} go on" if job.tasks.live else "",
        f"{ended} have ended" if ended else "",
    ]
    return f"{format_job_line(job, now_us())}\n  tasks: {', '.join(filter(None, parts))}"


CHANGES = {
    "hold": _Change(
        "Keep jobs from being handed to a cluster, until `yard release`. Jobs that a cluster already has go on.\n"
        "Of an array, the tasks that wait are held, and those that a cluster has go on.",
        """\
  yard hold 01JCQ0V7
  yard hold --label run=7 --dry-run
  yard submit --hold -- ./later            held from the start""",
        JobAction(
            "hold",
            "held",
            states=(State.PENDING, State.ASSIGNED, State.SUBMITTED, State.RUNNING),
            run=lambda yard, target, _: yard.change(target.job, hold=True),
            format_result=_format_held,
            applies_to=lambda job: not job.is_held and _has_waiting_work(job),
        ),
    ),
    "release": _Change(
        "Release held jobs.",
        """\
  yard release 01JCQ0V7
  yard release --owner me                  all that you hold""",
        JobAction(
            "release",
            "released",
            states=(State.PENDING, State.RUNNING),  # RUNNING: a held array with tasks that a cluster has
            run=lambda yard, target, _: yard.change(target.job, hold=False),
            format_result=lambda job: format_job_line(job, now_us()),
            applies_to=lambda job: job.is_held,
        ),
    ),
    "priority": _Change(
        "Change the priority of jobs. The cluster itself orders the jobs that its agent already has.",
        """\
  yard priority 01JCQ0V7 100               before all with less
  yard priority --label run=7 -- -5        after all others""",
        JobAction(
            "change the priority of",
            "changed",
            states=tuple(LIVE_STATES),
            run=lambda yard, target, args: yard.change(target.job, priority=args.priority),
            format_result=_format_priority,
        ),
        _add_priority,
    ),
}


def _run(command: str, argv: list[str]) -> int:
    change = CHANGES[command]
    parser = Parser(f"yard {command}", change.about, examples=change.examples)
    add_job_targets(parser)
    change.add_arguments(parser)
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        return run_action(yard, args, change.action)


hold = partial(_run, "hold")
release = partial(_run, "release")
priority = partial(_run, "priority")
