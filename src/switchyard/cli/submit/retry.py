"""`yard retry`: submit ended jobs again."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.jobs.job_action import JobAction, run_action
from switchyard.cli.jobs.job_selector import JobTarget, add_job_targets
from switchyard.cli.jobs.job_view import created_job, format_created
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.model.job.job import State
from switchyard.model.wire.api import CreatedJob
from switchyard.sdk.client import CoreClient

EXAMPLES = """\
  yard retry 01JCQ0V7
  yard retry 01JCQ0V7 --elsewhere          on other clusters, if any can run it
  yard retry '01JCQ0V7[3,5-7]'             these tasks of an array (default: those that did not succeed)
  yard retry --label run=7 --state failed --dry-run"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard retry",
        "Submit ended jobs again, each as a new job. Filters without --state select jobs that FAILED.",
        examples=EXAMPLES,
    )
    add_job_targets(parser)
    parser.add_argument("--elsewhere", action="store_true", help="prefer other clusters to the one it ran on")
    parser.add_argument(
        "--tasks", metavar="SET", help="of an array only these, as in 3,5-7 (default: tasks that did not succeed)"
    )
    add_shared(parser)
    args = parser.parse_args(argv)
    states = (State.FAILED, State.CANCELLED, State.REJECTED, State.SUCCEEDED) if args.state else (State.FAILED,)
    action = JobAction("retry", "submitted once more", states=states, run=_retry, format_result=format_created)
    with connect(args) as yard:
        return run_action(yard, args, action)


def _retry(yard: CoreClient, target: JobTarget, args: Namespace) -> CreatedJob:
    return created_job(yard.retry(target.job, elsewhere=args.elsewhere, tasks=target.tasks))
