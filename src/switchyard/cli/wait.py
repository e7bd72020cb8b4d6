"""`yard wait`: wait until jobs have ended, and exit with their code."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.job_view import EXIT_CODES_HELP, exit_code_of, format_job_line
from switchyard.cli.output import emit
from switchyard.cli.parser import Parser, add_shared, duration_s
from switchyard.cli.table import now_us
from switchyard.cli.wait_view import wait_for_job
from switchyard.errors import TimedOut

EXAMPLES = f"""\
  yard wait 01JCQ0V7 && echo it worked
  yard wait $(yard ls --state running -o name) --timeout 1h

{EXIT_CODES_HELP}
  Of several jobs: the first code that is not 0, in the order given."""


def main(argv: list[str]) -> int:
    import time

    args = _parser().parse_args(argv)
    end = None if args.timeout is None else time.monotonic() + args.timeout
    ended = []
    with connect(args) as yard:
        for job in args.job:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            try:
                ended.append(wait_for_job(yard, job, timeout_s=left_s, quiet=args.quiet, say_end=False))
            except TimedOut as exc:
                raise TimedOut(f"Not all ended within {args.timeout} s. {exc.detail}", next_step=exc.next_step) from exc
            if not args.output and not args.quiet:
                print(format_job_line(ended[-1], now_us()), flush=True)
    emit(ended[0] if len(ended) == 1 else ended, args.output, key="id")
    return next((code for code in map(exit_code_of, ended) if code), 0)


def _parser() -> Parser:
    parser = Parser("yard wait", "Wait for jobs to end. State changes go to stderr.", examples=EXAMPLES)
    parser.add_argument("job", nargs="+", metavar="ID", help="a job's id, or enough of its start")
    parser.add_argument("--timeout", type=duration_s, metavar="T", help="wait at most this long (90, 15m, 2h) for all")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing; only set the exit code")
    add_shared(parser, is_patient=True)
    return parser
