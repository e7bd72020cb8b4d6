"""`yard cancel`: ask for the end of jobs, of some tasks of an array, or of all that a selector means."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.acting import Deed, act, jobs_text, say_what_would_be
from switchyard.cli.connect import connect
from switchyard.cli.job_view import job_line
from switchyard.cli.output import confirm, emit_list, note
from switchyard.cli.parser import Parser, add_shared, duration_s
from switchyard.cli.progress import Progress
from switchyard.cli.selecting import Target, add_targets, selector_of, targets_of
from switchyard.cli.table import now_us
from switchyard.cli.watching import follow
from switchyard.errors import EXIT_ERROR, EXIT_OK
from switchyard.model.job import Job
from switchyard.model.lifecycle import LIVE
from switchyard.sdk.client import Client

EXAMPLES = """\
  yard cancel 01JCQ0V7
  yard cancel 01JCQ0V7 --wait              until the cluster says it is gone
  yard cancel '01JCQ0V7[3,5-7]'            some tasks of an array
  yard cancel --label run=7 --dry-run      how many would that be?
  yard cancel --owner me --state pending --reason 'wrong data'"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    with connect(args) as yard:
        if targets_of(args):
            return act(yard, args, _deed(args))
        return _cancel_selected(yard, args)


def _deed(args: Namespace) -> Deed[Job]:
    def do(yard: Client, target: Target) -> Job:
        job = yard.cancel(target.job, reason=args.reason, tasks=target.tasks)
        return follow(yard, job.id, timeout_s=args.timeout, quiet=True) if args.wait and not target.tasks else job

    return Deed(
        "cancel",
        "cancelled",
        tuple(LIVE),
        do,
        name=lambda job: job.id,
        line=lambda job: job_line(job, now_us()),
    )


def _cancel_selected(yard: Client, args: Namespace) -> int:
    """By the server, round by round: it never has to hold up others for it, however many they are."""
    selector = selector_of(yard, args)
    if args.dry_run or not args.force:
        found = [
            each for round_ in yard.cancel_many(selector, everything=args.all, dry_run=True) for each in round_.ids
        ]
        if args.dry_run:
            return say_what_would_be(found, "cancel")
        if found and not confirm(f"Cancel {jobs_text(len(found))}?", force=False):
            return EXIT_ERROR
        total = len(found)
    else:
        total = 0
    asked: list[str] = []
    refused = 0
    with Progress("cancel", total) as progress:
        for round_ in yard.cancel_many(selector, everything=args.all, reason=args.reason):
            asked += round_.ids
            refused += round_.refused
            progress.show(len(asked), note=f"{refused} refused" if refused else "")
    if args.wait:
        _wait(yard, asked, args.timeout)
    _say(yard, args, asked)
    if refused:
        note(f"error: {jobs_text(refused)} of others are not yours to cancel: that needs the role operate.")
    return EXIT_ERROR if refused else EXIT_OK


def _wait(yard: Client, asked: list[str], timeout_s: float | None) -> None:
    from switchyard.model.api import Created
    from switchyard.sdk.completed import as_completed
    from switchyard.sdk.handle import JobHandle

    handles = [JobHandle(yard, Created(job, "RUNNING")) for job in asked]
    with Progress("ended", len(handles)) as progress:
        for done, _ in enumerate(as_completed(handles, timeout_s), start=1):
            progress.show(done)


def _say(yard: Client, args: Namespace, asked: list[str]) -> None:
    if args.output == "name":
        print("\n".join(asked), end="\n" if asked else "")
    elif args.output:
        from switchyard.sdk.completed import look_at

        emit_list(look_at(yard, asked), args.output, name=lambda job: job.id)
    elif asked:
        print(f"Asked for the end of {jobs_text(len(asked))}.")
    else:
        note("No job to cancel.")


def _parser() -> Parser:
    parser = Parser(
        "yard cancel",
        "Cancel jobs. One that a cluster already has is CANCELLED only when the cluster says it is gone.",
        examples=EXAMPLES,
    )
    add_targets(parser)
    parser.add_argument("--tasks", metavar="SET", help="of an array only these, as in 3,5-7; the same as 'ID[3,5-7]'")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who look later")
    parser.add_argument("--wait", action="store_true", help="wait until they have ended")
    parser.add_argument("--timeout", type=duration_s, metavar="T", help="with --wait: at most this long for each")
    add_shared(parser)
    return parser
