"""`yard events`: list or follow the events of one job, or of all jobs."""

from __future__ import annotations

import msgspec

from switchyard.cli.connect import connect
from switchyard.cli.output import all_fields, emit, paint_state, print_notice, printable
from switchyard.cli.parser import Parser, add_shared, duration_s, positive_int
from switchyard.cli.table import Column, format_age, now_us, print_table
from switchyard.model.api import Event

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
  yard events --after 41250 -o json        all jobs, from a number on
  yard events --since 2h
  yard events -f -o json                   one JSON object per line, without end"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    with connect(args) as yard:
        if args.follow:
            for event in yard.events(args.job, after=args.after, since_s=args.since, follow=True):
                print_event(event, args.output)
            return 0
        limit = args.limit if args.job is None else None
        events = list(yard.events(args.job, after=args.after, since_s=args.since, limit=limit))
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


def print_event(event: Event, form: str | None) -> None:
    """Print one event as one line, for a stream of events."""
    if form == "json":
        print(msgspec.json.encode(all_fields(event)).decode(), flush=True)
        return
    where = f" on {event.cluster}" if event.cluster else ""
    why = f": {event.reason}" if event.reason else ""
    print(f"{event.seq}  {event.job}  {event.kind}  {paint_state(event.state)}{printable(where + why)}", flush=True)


def _row(event: Event, now: int) -> list[str]:
    attempt = str(event.attempt) if event.attempt else ""
    when = format_age(event.at_us, now)
    return [str(event.seq), when, event.job, event.kind, event.state, event.cluster or "", attempt, event.reason]


def _parser() -> Parser:
    parser = Parser("yard events", "Show the events of a job, or of all jobs, oldest first.", examples=EXAMPLES)
    parser.add_argument("job", nargs="?", metavar="ID", help="a job's id, or enough of its start (default: all jobs)")
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
