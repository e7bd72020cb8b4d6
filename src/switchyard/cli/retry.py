"""`yard retry`: jobs that are over, once more."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.acting import Deed, act
from switchyard.cli.connect import connect
from switchyard.cli.output import clean, paint
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.selecting import Target, add_targets
from switchyard.model.api import Created
from switchyard.model.job import State
from switchyard.sdk.client import Client

EXAMPLES = """\
  yard retry 01JCQ0V7
  yard retry 01JCQ0V7 --elsewhere          where it ran comes last
  yard retry '01JCQ0V7[3,5-7]'             of an array these; without: those that did not succeed
  yard retry --label run=7 --state failed --dry-run"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard retry",
        "Submit jobs that are over once more, each as a new job. A selector without --state means those that FAILED.",
        examples=EXAMPLES,
    )
    add_targets(parser)
    parser.add_argument("--elsewhere", action="store_true", help="the cluster it ran on comes last")
    parser.add_argument("--tasks", metavar="SET", help="of an array these, as in 3,5-7 (default: what did not succeed)")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        return act(yard, args, _deed(args))


def _deed(args: Namespace) -> Deed[Created]:
    over = (State.FAILED, State.CANCELLED, State.REJECTED, State.SUCCEEDED) if args.state else (State.FAILED,)

    def do(yard: Client, target: Target) -> Created:
        again = yard.retry(target.job, elsewhere=args.elsewhere, tasks=target.tasks)
        return Created(again.id, again.state.value, again.cluster, again.reason)

    return Deed("retry", "submitted once more", over, do, name=lambda each: each.id, line=_line)


def _line(made: Created) -> str:
    where = f"goes to {made.cluster}" if made.cluster else f"is {made.state}"
    return f"Job {paint(made.id, 'bold')} " + clean(where + (f": {made.reason}" if made.reason else ""))
