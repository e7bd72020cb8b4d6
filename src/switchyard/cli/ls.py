"""`yard ls`: the jobs you may see, newest first."""

from __future__ import annotations

import sys

from switchyard.cli.connect import connect
from switchyard.cli.job_view import COLUMNS, job_row
from switchyard.cli.output import emit_list, note
from switchyard.cli.parser import Parser, add_shared, count, pair
from switchyard.cli.table import now_us, print_table
from switchyard.errors import BadRequest
from switchyard.model.job import Job, State

LIMIT = 20  # fits a terminal

EXAMPLES = """\
  yard ls                                  the newest 20
  yard ls --all --state failed             every job that failed
  yard ls --cluster alpha --label team=ml
  yard ls --state running -o name | xargs yard cancel"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    limit = None if args.all else args.limit
    with connect(args) as yard:
        found = yard.jobs(
            state=[_state(text) for text in args.state],
            cluster=args.cluster,
            project=args.project,
            domain=args.domain,
            owner=args.owner,
            labels=dict(args.label),
            spec=args.output in ("json", "yaml"),
            limit=limit and limit + 1,  # one more than shown tells whether there are more
        )
        jobs = list(found)
    if args.output:
        emit_list(jobs[:limit], args.output, name=lambda job: job.id)
    else:
        _show(jobs, limit)
    return 0


def _show(jobs: list[Job], limit: int | None) -> None:
    now = now_us()
    print_table(COLUMNS, [job_row(job, now) for job in jobs[:limit]])
    if not jobs:
        note("No jobs. `yard submit -- hostname` makes one.")
    if limit and len(jobs) > limit and sys.stdout.isatty():
        note(f"These are the newest {limit}; `yard ls --all` lists all.")


def _state(text: str) -> State:
    try:
        return State(text.upper())
    except ValueError as exc:
        known = ", ".join(state.value.lower() for state in State)
        raise BadRequest(f"{text!r} is not a state of a job.", next_step=f"States are: {known}.") from exc


def _parser() -> Parser:
    parser = Parser("yard ls", "List jobs, newest first.", examples=EXAMPLES)
    parser.add_argument("-a", "--all", action="store_true", help="all of them, not only the newest")
    parser.add_argument("--limit", type=count, default=LIMIT, metavar="N", help=f"how many to show (default {LIMIT})")
    parser.add_argument("--state", action="append", default=[], metavar="S", help="only in this state; repeatable")
    parser.add_argument("--cluster", metavar="NAME", help="only on this cluster")
    parser.add_argument("--project", metavar="NAME", help="only of this project")
    parser.add_argument("--domain", metavar="NAME", help="only of this domain")
    parser.add_argument("--owner", metavar="USER", help="only of this user")
    parser.add_argument(
        "-l", "--label", type=pair, action="append", default=[], metavar="K=V", help="only with this label; repeatable"
    )
    add_shared(parser)
    return parser
