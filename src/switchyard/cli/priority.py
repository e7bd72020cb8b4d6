"""`yard priority`: who goes first."""

from __future__ import annotations

from switchyard.cli.acting import Deed, act
from switchyard.cli.connect import connect
from switchyard.cli.output import clean
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.selecting import add_targets
from switchyard.model.lifecycle import LIVE

EXAMPLES = """\
  yard priority 01JCQ0V7 100               before all with less
  yard priority --label run=7 -- -5        after all others"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard priority",
        "Give jobs another priority. What an agent already has is its cluster's to order.",
        examples=EXAMPLES,
    )
    add_targets(parser)
    parser.add_argument("priority", type=int, metavar="N", help="higher goes first; 0 is usual")
    add_shared(parser)
    args = parser.parse_args(argv)
    deed = Deed(
        "change the priority of",
        "changed",
        tuple(LIVE),
        lambda yard, target: yard.change(target.job, priority=args.priority),
        name=lambda job: job.id,
        line=lambda job: f"{job.id}  priority {job.priority}  " + clean(f"{job.state.value} {job.name}"),
    )
    with connect(args) as yard:
        return act(yard, args, deed)
