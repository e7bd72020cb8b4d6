"""`yard cancel`: ask for the end of jobs."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.job_view import job_line
from switchyard.cli.output import emit, emit_list
from switchyard.cli.parser import Parser, add_shared, duration_s
from switchyard.cli.table import now_us
from switchyard.cli.watching import follow

EXAMPLES = """\
  yard cancel 01JCQ0V7
  yard cancel 01JCQ0V7 --wait              until the cluster says it is gone
  yard ls --state pending -o name | xargs yard cancel --reason 'wrong data'"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard cancel",
        "Cancel jobs. One that a cluster already has is CANCELLED only when the cluster says it is gone.",
        examples=EXAMPLES,
    )
    parser.add_argument("job", nargs="+", metavar="ID", help="a job's id, or enough of its start")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who look later")
    parser.add_argument("--wait", action="store_true", help="wait until they have ended")
    parser.add_argument("--timeout", type=duration_s, metavar="T", help="with --wait: at most this long for each")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        jobs = [yard.cancel(job, reason=args.reason) for job in args.job]
        if args.wait:
            jobs = [follow(yard, job.id, timeout_s=args.timeout, quiet=True) for job in jobs]
    if args.output and len(jobs) == 1:
        emit(jobs[0], args.output, name=lambda each: each.id)
    elif args.output:
        emit_list(jobs, args.output, name=lambda each: each.id)
    else:
        for job in jobs:
            print(job_line(job, now_us()))
    return 0
