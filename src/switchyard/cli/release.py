"""`yard release`: let held jobs go."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.job_action import JobAction, run_action
from switchyard.cli.job_selector import add_job_targets
from switchyard.cli.job_view import format_job_line
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.table import now_us
from switchyard.model.job import State

EXAMPLES = """\
  yard release 01JCQ0V7
  yard release --owner me                  all that you hold"""


def main(argv: list[str]) -> int:
    parser = Parser("yard release", "Let held jobs go.", examples=EXAMPLES)
    add_job_targets(parser)
    add_shared(parser)
    args = parser.parse_args(argv)
    deed = JobAction(
        "release",
        "released",
        (State.PENDING,),
        lambda yard, target: yard.change(target.job, hold=False),
        name=lambda job: job.id,
        line=lambda job: format_job_line(job, now_us()),
        concerns=lambda job: job.is_held,
    )
    with connect(args) as yard:
        return run_action(yard, args, deed)
