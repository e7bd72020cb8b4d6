"""`yard show`: one job in full."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.job_view import print_job
from switchyard.cli.output import emit, emit_list
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.table import now_us

EXAMPLES = """\
  yard show 01JCQ0V7                       the start of an id is enough
  yard show 01JCQ0V7 -o json | jq .exit_code"""


def main(argv: list[str]) -> int:
    parser = Parser("yard show", "Show jobs in full: what was asked, where it went, how it ended.", examples=EXAMPLES)
    parser.add_argument("job", nargs="+", metavar="ID", help="a job's id, or enough of its start")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        jobs = [yard.job(job) for job in args.job]
    if args.output:
        if len(jobs) == 1:
            emit(jobs[0], args.output, name=lambda job: job.id)
        else:
            emit_list(jobs, args.output, name=lambda job: job.id)
        return 0
    for index, job in enumerate(jobs):
        if index:
            print()
        print_job(job, now_us())
    return 0
