"""`yard ls`: the jobs you may see, newest first."""

from __future__ import annotations

import sys
from argparse import Namespace

from switchyard.cli.connect import connect
from switchyard.cli.job_selector import add_job_filters, owner_of, states_of
from switchyard.cli.job_view import print_jobs
from switchyard.cli.output import emit_list, print_notice
from switchyard.cli.parser import Parser, add_shared, positive_int
from switchyard.cli.refresh import refresh_until_done, refuse_output_option
from switchyard.cli.table import now_us
from switchyard.model.job import Job
from switchyard.sdk.client import Client

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
        args.owner = owner_of(yard, args)
        if args.watch:
            refuse_output_option(args)
            return refresh_until_done(lambda: _show(_fetch_jobs(yard, args), None if args.all else args.limit))
        jobs = _fetch_jobs(yard, args)
    limit = None if args.all else args.limit
    if args.output:
        emit_list(jobs[:limit], args.output, name=lambda job: job.id)
    else:
        _show(jobs, limit)
    return 0


def _fetch_jobs(yard: Client, args: Namespace) -> list[Job]:
    found = yard.jobs(
        state=states_of(args),
        cluster=args.cluster,
        project=args.project,
        domain=args.domain,
        workflow=args.workflow,
        launch_plan=args.launch_plan,
        owner=args.owner,
        labels=dict(args.label),
        since_s=args.since,
        spec=args.output in ("json", "yaml"),
        limit=None if args.all else args.limit + 1,  # one more than shown tells whether there are more
    )
    return list(found)


def _show(jobs: list[Job], limit: int | None) -> None:
    print_jobs(jobs[:limit], now_us())
    if not jobs:
        print_notice("No jobs. `yard submit -- hostname` makes one.")
    if limit and len(jobs) > limit and sys.stdout.isatty():
        print_notice(f"These are the newest {limit}; `yard ls --all` lists all.")


def _parser() -> Parser:
    parser = Parser("yard ls", "List jobs, newest first.", examples=EXAMPLES)
    parser.add_argument("-a", "--all", action="store_true", help="all of them, not only the newest")
    parser.add_argument(
        "--limit", type=positive_int, default=LIMIT, metavar="N", help=f"how many to show (default {LIMIT})"
    )
    parser.add_argument("--watch", action="store_true", help="show them again each second, until Ctrl-C")
    add_job_filters(parser)
    add_shared(parser)
    return parser
