"""`yard tasks`: the tasks of an array, one by one."""

from __future__ import annotations

import sys

from switchyard.cli.connect import connect
from switchyard.cli.job_view import format_exit
from switchyard.cli.output import emit_list, print_notice
from switchyard.cli.parser import Parser, add_shared, positive_int
from switchyard.cli.table import Column, print_table
from switchyard.errors import BadRequest
from switchyard.model.job import State, Task

LIMIT = 100
COLUMNS = (
    Column("TASK", right=True),
    Column("STATE"),
    Column("EXIT", right=True),
    Column("CLUSTER"),
    Column("REASON", flexible=True),
)
EXAMPLES = """\
  yard tasks 01JCQ0V7                      the first 100
  yard tasks 01JCQ0V7 --all --state failed
  yard logs 01JCQ0V7 --task 17             what one of them wrote
  yard retry 01JCQ0V7                      those that did not succeed, as a new job"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    limit = None if args.all else args.limit
    with connect(args) as yard:
        found = list(yard.tasks(args.job, state=_parse_state(args.state), limit=limit and limit + 1))
    if args.output:
        emit_list(found[:limit], args.output, name=lambda task: str(task.index))
        return 0
    print_table(COLUMNS, [_row(task) for task in found[:limit]])
    if limit and len(found) > limit and sys.stdout.isatty():
        print_notice(f"These are the first {limit}; --all lists all.")
    return 0


def _row(task: Task) -> list[str]:
    ending = "cancel requested" if task.cancel_requested and task.state is not State.CANCELLED else task.reason
    return [str(task.index), task.state.value, format_exit(task), task.cluster or "", ending]


def _parse_state(text: str | None) -> State | None:
    if text is None:
        return None
    try:
        return State(text.upper())
    except ValueError as exc:
        known = ", ".join(state.value.lower() for state in State)
        raise BadRequest(f"{text!r} is not a state of a task.", next_step=f"States are: {known}.") from exc


def _parser() -> Parser:
    parser = Parser("yard tasks", "List the tasks of an array, by index.", examples=EXAMPLES)
    parser.add_argument("job", metavar="ID", help="the array's id, or enough of its start")
    parser.add_argument("--state", metavar="S", help="only in this state")
    parser.add_argument("-a", "--all", action="store_true", help="all of them")
    parser.add_argument(
        "--limit", type=positive_int, default=LIMIT, metavar="N", help=f"how many to show (default {LIMIT})"
    )
    add_shared(parser)
    return parser
