"""`yard tasks`: list the tasks of an array."""

from __future__ import annotations

import sys
from itertools import compress

from switchyard.cli.jobs.job_selector import parse_state
from switchyard.cli.jobs.job_view import format_exit, format_tally, format_tasks_by_cluster
from switchyard.cli.jobs.task_view import format_earlier, format_task_files, task_reason
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_limit, add_shared
from switchyard.cli.terminal.table import Column, print_table
from switchyard.model.job.job import Job, Task

LIMIT = 100
COLUMNS = (
    Column("TASK", right=True),
    Column("STATE"),
    Column("EXIT", right=True),
    Column("CLUSTER"),
    Column("ATTEMPTS", right=True),
    Column("FILES"),
    Column("REASON", flexible=True),
    Column("EARLIER ATTEMPTS", flexible=True, optional=True),
)
UNUSUAL = frozenset({"FILES", "EARLIER ATTEMPTS"})  # columns that are left out if they are empty
EXAMPLES = """\
  yard tasks 01JCQ0V7                      the first 100
  yard tasks 01JCQ0V7 --all --state failed
  yard show '01JCQ0V7[17]'                 one of them in full
  yard logs 01JCQ0V7 --task 17             what one of them wrote
  yard retry 01JCQ0V7                      those that did not succeed, as a new job"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    limit = None if args.all else args.limit
    state = None if args.state is None else parse_state(args.state, "task")
    with connect(args) as yard:
        tasks = list(yard.tasks(args.job, state=state, limit=limit and limit + 1))
        job = None if args.output else yard.job(args.job)
    if emit(tasks[:limit], args.output, key="index"):
        return 0
    assert job is not None, "it is read where `emit` prints nothing"
    rows = [_row(job, task) for task in tasks[:limit]]
    # Most arrays have no output files and no earlier attempts.
    used = [column.title not in UNUSUAL or any(row[place] for row in rows) for place, column in enumerate(COLUMNS)]
    print_table(list(compress(COLUMNS, used)), [list(compress(row, used)) for row in rows])
    if job.tasks is not None and job.tasks_by_cluster:
        print_notice(f"{format_tally(job.tasks)}. On clusters: {format_tasks_by_cluster(job.tasks_by_cluster)}.")
    if limit and len(tasks) > limit and sys.stdout.isatty():
        print_notice(f"These are the first {limit}; --all lists all.")
    return 0


def _row(job: Job, task: Task) -> list[str]:
    attempts = str(task.attempts) if task.attempts else ""
    cells = [str(task.index), task.state.value, format_exit(task), task.cluster or "", attempts]
    return [*cells, format_task_files(job, task), task_reason(task), format_earlier(task)]


def _parser() -> Parser:
    parser = Parser("yard tasks", "List the tasks of an array, by index.", examples=EXAMPLES)
    parser.add_argument("job", metavar="ID", help="the array's id, or enough of its start")
    parser.add_argument("--state", metavar="S", help="only in this state")
    parser.add_argument("-a", "--all", action="store_true", help="all of them")
    add_limit(parser, LIMIT)
    add_shared(parser)
    return parser
