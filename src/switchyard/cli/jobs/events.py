"""`yard events`: list or follow the events of one job, or of all jobs."""

from __future__ import annotations

from switchyard.cli.jobs.job_selector import parse_task
from switchyard.cli.jobs.job_view import print_event
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_shared, duration_s, positive_int
from switchyard.cli.terminal.table import Column, format_age, now_us, print_table
from switchyard.model.job.event_kind import TASK_PREFIX
from switchyard.model.wire.api import Event

LIMIT = 100  # of all jobs' events at once; one job's are few
COLUMNS = (
    Column("SEQ", right=True),
    Column("AGE", right=True),
    Column("JOB"),
    Column("EVENT"),
    Column("STATE"),
    Column("CLUSTER", flexible=True),
    Column("ATTEMPT", right=True, optional=True),
    Column("REASON", flexible=True),
)
EXAMPLES = """\
  yard events 01JCQ0V7
  yard events '01JCQ0V7[4]'                those about one task of an array
  yard events --after 41250 -o json        all jobs, from a number on
  yard events --since 2h
  yard events -f -o json                   one JSON object per line, without end"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    args.job, task = (None, None) if args.job is None else parse_task(args.job)
    with connect(args) as yard:
        if args.follow:
            for event in yard.events(args.job, after=args.after, since_s=args.since, follow=True):
                if _is_of_task(event, task):
                    print_event(event, args.output)
            return 0
        limit = args.limit if args.job is None else None
        events = [
            event
            for event in yard.events(args.job, after=args.after, since_s=args.since, limit=limit)
            if _is_of_task(event, task)
        ]
        if task is not None and not events:
            yard.task(args.job, task)  # or an error: there is no such task
            notice = f"No event is about task {task} alone; `yard show '{args.job}[{task}]'` has its state."
            print_notice(notice)
        if args.since and args.job:
            first_us = yard.version().now_us - args.since * 1_000_000
            events = [event for event in events if event.at_us >= first_us]
    if emit(events, args.output, key="seq"):
        return 0
    now = now_us()
    print_table(COLUMNS, [_row(event, now) for event in events])
    if len(events) == limit:
        print_notice(f"There may be more: `yard events --after {events[-1].seq}` goes on.")
    return 0


def _is_of_task(event: Event, task: int | None) -> bool:
    """Return whether the event is about this task of the array. None: any event."""
    is_alone = event.kind.startswith(TASK_PREFIX) and event.reason.partition(":")[0] == f"task {task}"
    return task is None or is_alone


def _row(event: Event, now: int) -> list[str]:
    attempt = str(event.attempt) if event.attempt else ""
    when = format_age(event.at_us, now)
    return [str(event.seq), when, event.job, event.kind, event.state, event.cluster or "", attempt, event.reason]


def _parser() -> Parser:
    parser = Parser("yard events", "Show the events of a job, or of all jobs, oldest first.", examples=EXAMPLES)
    parser.add_argument(
        "job", nargs="?", metavar="ID", help="a job's id, or enough of its start; ID[4]: a task (default: all jobs)"
    )
    parser.add_argument("--after", type=int, default=0, metavar="SEQ", help="only events after this number")
    parser.add_argument("--since", type=duration_s, metavar="T", help="only events within this time: 90, 15m, 2h, 1d")
    parser.add_argument(
        "--limit",
        type=positive_int,
        default=LIMIT,
        metavar="N",
        help=f"without ID: at most this many (default {LIMIT})",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow new events")
    add_shared(parser, outputs=("json", "yaml"))
    return parser
