"""`yard show`: one job in full."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.cli.connect import connect
from switchyard.cli.job_view import print_job
from switchyard.cli.output import emit, emit_list
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.refresh import refresh_until_done, refuse_output_option
from switchyard.cli.table import now_us
from switchyard.model.job import Job
from switchyard.model.lifecycle import FINAL_STATES

EXAMPLES = """\
  yard show 01JCQ0V7                       the start of an id is enough
  yard show 01JCQ0V7 -o json | jq .exit_code
  yard show 01JCQ0V7 --watch               again each second, until it has ended"""


def main(argv: list[str]) -> int:
    parser = Parser("yard show", "Show jobs in full: what was asked, where it went, how it ended.", examples=EXAMPLES)
    parser.add_argument("job", nargs="+", metavar="ID", help="a job's id, or enough of its start")
    parser.add_argument("--watch", action="store_true", help="show it again each second, until it has ended")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        if args.watch:
            refuse_output_option(args)
            return refresh_until_done(lambda: _show([yard.job(job) for job in args.job]))
        jobs = [yard.job(job) for job in args.job]
    if args.output:
        if len(jobs) == 1:
            emit(jobs[0], args.output, name=lambda job: job.id)
        else:
            emit_list(jobs, args.output, name=lambda job: job.id)
        return 0
    _show(jobs)
    return 0


def _show(jobs: Sequence[Job]) -> bool:
    """Print them; whether all are over."""
    for index, job in enumerate(jobs):
        if index:
            print()
        print_job(job, now_us())
    return all(job.state in FINAL_STATES for job in jobs)
