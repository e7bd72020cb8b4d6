"""`yard hold`: keep jobs from being handed over."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.job_action import JobAction, run_action
from switchyard.cli.job_selector import add_job_targets
from switchyard.cli.job_view import format_job_line
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.table import now_us
from switchyard.model.job import State

EXAMPLES = """\
  yard hold 01JCQ0V7
  yard hold --label run=7 --dry-run
  yard submit --hold -- ./later            held from the start"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard hold",
        "Keep jobs from being handed over, until `yard release`. What a cluster has goes on.",
        examples=EXAMPLES,
    )
    add_job_targets(parser)
    add_shared(parser)
    args = parser.parse_args(argv)
    deed = JobAction(
        "hold",
        "held",
        (State.PENDING, State.ASSIGNED),
        lambda yard, target: yard.change(target.job, hold=True),
        name=lambda job: job.id,
        line=lambda job: format_job_line(job, now_us()),
        concerns=lambda job: not job.is_held and job.leased_us is None,
    )
    with connect(args) as yard:
        return run_action(yard, args, deed)
