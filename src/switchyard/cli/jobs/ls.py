"""`yard ls`: the jobs you may see, newest first."""

from __future__ import annotations

import sys
from argparse import Namespace

from switchyard.cli.jobs.job_selector import JobFilters, add_job_filters, filters_of, states_of
from switchyard.cli.jobs.job_view import print_jobs
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_limit, add_shared
from switchyard.cli.terminal.refresh import refresh_until_done, refuse_output_option
from switchyard.cli.terminal.table import now_us
from switchyard.model.job.job import Job
from switchyard.sdk.client import CoreClient

LIMIT = 20  # fits a terminal

EXAMPLES = """\
  yard ls                                  the newest 20
  yard ls --all --state failed             every job that failed
  yard ls --cluster alpha --label team=ml --since 2h
  yard ls --owner me --watch               again each second
  yard ls --state running -o name | xargs yard wait"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    with connect(args) as yard:
        filters = filters_of(yard, args)
        limit = None if args.all else args.limit
        if args.watch:
            refuse_output_option(args)
            return refresh_until_done(lambda: _show(_fetch_jobs(yard, args, filters), limit))
        jobs = _fetch_jobs(yard, args, filters)
    if not emit(jobs[:limit], args.output, key="id"):
        _show(jobs, limit)
    return 0


def _fetch_jobs(yard: CoreClient, args: Namespace, filters: JobFilters) -> list[Job]:
    jobs = yard.jobs(
        state=states_of(args),
        **filters,
        spec=args.output in ("json", "yaml"),
        limit=None if args.all else args.limit + 1,  # one more than shown tells whether there are more
    )
    return list(jobs)


def _show(jobs: list[Job], limit: int | None) -> None:
    print_jobs(jobs[:limit], now_us())
    if not jobs:
        print_notice("No jobs. `yard submit -- hostname` makes one.")
    if limit and len(jobs) > limit and sys.stdout.isatty():
        print_notice(f"These are the newest {limit}; `yard ls --all` lists all.")


def _parser() -> Parser:
    parser = Parser("yard ls", "List jobs, newest first.", examples=EXAMPLES)
    parser.add_argument("-a", "--all", action="store_true", help="all of them, not only the newest")
    add_limit(parser, LIMIT)
    parser.add_argument("--watch", action="store_true", help="show them again each second, until Ctrl-C")
    add_job_filters(parser)
    add_shared(parser)
    return parser
