"""`yard retry`: jobs that are over, once more."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.connect import connect
from switchyard.cli.job_action import JobAction, run_action
from switchyard.cli.job_selector import JobTarget, add_job_targets
from switchyard.cli.output import paint, printable
from switchyard.cli.parser import Parser, add_shared
from switchyard.model.api import CreatedJob
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
    add_job_targets(parser)
    parser.add_argument("--elsewhere", action="store_true", help="the cluster it ran on comes last")
    parser.add_argument("--tasks", metavar="SET", help="of an array these, as in 3,5-7 (default: what did not succeed)")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        return run_action(yard, args, _retry_action(args))


def _retry_action(args: Namespace) -> JobAction[CreatedJob]:
    over = (State.FAILED, State.CANCELLED, State.REJECTED, State.SUCCEEDED) if args.state else (State.FAILED,)

    def do(yard: Client, target: JobTarget) -> CreatedJob:
        again = yard.retry(target.job, elsewhere=args.elsewhere, tasks=target.tasks)
        return CreatedJob(again.id, again.state.value, again.cluster, again.reason)

    return JobAction("retry", "submitted once more", over, do, name=lambda each: each.id, line=_format_created)


def _format_created(made: CreatedJob) -> str:
    where = f"goes to {made.cluster}" if made.cluster else f"is {made.state}"
    return f"Job {paint(made.id, 'bold')} " + printable(where + (f": {made.reason}" if made.reason else ""))
