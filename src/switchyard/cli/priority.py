"""`yard priority`: who goes first."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.job_action import JobAction, run_action
from switchyard.cli.job_selector import add_job_targets
from switchyard.cli.output import printable
from switchyard.cli.parser import Parser, add_shared
from switchyard.model.lifecycle import LIVE_STATES

EXAMPLES = """\
  yard priority 01JCQ0V7 100               before all with less
  yard priority --label run=7 -- -5        after all others"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard priority",
        "Give jobs another priority. What an agent already has is its cluster's to order.",
        examples=EXAMPLES,
    )
    add_job_targets(parser)
    parser.add_argument("priority", type=int, metavar="N", help="higher goes first; 0 is usual")
    add_shared(parser)
    args = parser.parse_args(argv)
    deed = JobAction(
        "change the priority of",
        "changed",
        tuple(LIVE_STATES),
        lambda yard, target: yard.change(target.job, priority=args.priority),
        name=lambda job: job.id,
        line=lambda job: f"{job.id}  priority {job.priority}  " + printable(f"{job.state.value} {job.name}"),
    )
    with connect(args) as yard:
        return run_action(yard, args, deed)
