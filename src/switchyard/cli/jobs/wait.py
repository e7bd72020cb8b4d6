"""`yard wait`: wait until jobs have ended, and exit with their code."""

from __future__ import annotations

from typing import NamedTuple

from switchyard.cli.jobs.job_selector import parse_task
from switchyard.cli.jobs.job_view import EXIT_CODES_HELP, exit_code_of, format_job_line
from switchyard.cli.jobs.task_view import emit_jobs_and_tasks, format_task_line, task_exit_code
from switchyard.cli.jobs.wait_view import wait_for_job, wait_for_task
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.parser import Parser, add_shared, duration_s
from switchyard.cli.terminal.table import now_us
from switchyard.errors import TimedOut
from switchyard.model.job.job import Job, Task
from switchyard.sdk.client import CoreClient

EXAMPLES = f"""\
  yard wait 01JCQ0V7 && echo it worked
  yard wait '01JCQ0V7[4]'                  one task of an array
  yard wait $(yard ls --state running -o name) --timeout 1h

{EXIT_CODES_HELP}
  Of several jobs: the first code that is not 0, in the order given."""


def main(argv: list[str]) -> int:
    import time

    args = _parser().parse_args(argv)
    end = None if args.timeout is None else time.monotonic() + args.timeout
    final: list[_Ended] = []
    with connect(args) as yard:
        for job in args.job:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            try:
                result = _wait(yard, job, left_s, quiet=args.quiet)
            except TimedOut as exc:
                raise TimedOut(f"Not all ended within {args.timeout} s. {exc.detail}", next_step=exc.next_step) from exc
            final.append(result)
            if not args.output and not args.quiet:
                print(result.line, flush=True)
    emit_jobs_and_tasks([(result.job, result.item) for result in final], args.output)
    return next((result.exit_code for result in final if result.exit_code), 0)


class _Ended(NamedTuple):
    """A job or a task that has ended, as the command shows it."""

    job: str
    item: Job | Task
    line: str
    exit_code: int


def _wait(yard: CoreClient, text: str, timeout_s: float | None, *, quiet: bool) -> _Ended:
    job_id, index = parse_task(text)
    if index is not None:
        task = wait_for_task(yard, job_id, index, timeout_s=timeout_s, quiet=quiet)
        return _Ended(job_id, task, format_task_line(job_id, task), task_exit_code(task))
    job = wait_for_job(yard, job_id, timeout_s=timeout_s, quiet=quiet, say_end=False)
    return _Ended(job.id, job, format_job_line(job, now_us()), exit_code_of(job))


def _parser() -> Parser:
    parser = Parser("yard wait", "Wait for jobs to end. State changes go to stderr.", examples=EXAMPLES)
    parser.add_argument(
        "job", nargs="+", metavar="ID", help="a job's id, or enough of its start; ID[4]: a task of an array"
    )
    parser.add_argument("--timeout", type=duration_s, metavar="T", help="wait at most this long (90, 15m, 2h) for all")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing; only set the exit code")
    add_shared(parser, is_patient=True)
    return parser
