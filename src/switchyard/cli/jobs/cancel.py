"""`yard cancel`: cancel jobs, some tasks of an array, or all selected jobs."""

from __future__ import annotations

from argparse import Namespace

from msgspec.structs import replace

from switchyard.cli.jobs.job_action import JobAction, format_job_count, print_dry_run, run_action
from switchyard.cli.jobs.job_selector import JobTarget, add_job_targets, selector_of, targets_of
from switchyard.cli.jobs.job_view import format_job_line
from switchyard.cli.jobs.wait_view import wait_for_ends, wait_for_job
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_shared, duration_s
from switchyard.cli.terminal.progress import ProgressBar
from switchyard.cli.terminal.table import now_us
from switchyard.errors import EXIT_ERROR, EXIT_OK
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import Job
from switchyard.model.job.lifecycle import LIVE_STATES
from switchyard.model.wire.api import CreatedJob
from switchyard.sdk.client import CoreClient
from switchyard.sdk.jobs.handle import JobHandle
from switchyard.sdk.jobs.job_completion import fetch_jobs

EXAMPLES = """\
  yard cancel 01JCQ0V7
  yard cancel 01JCQ0V7 --wait              until the cluster says it is gone
  yard cancel '01JCQ0V7[3,5-7]'            some tasks of an array
  yard cancel --label run=7 --dry-run      how many would that be?
  yard cancel --owner me --state pending --reason 'wrong data'"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    states = tuple(LIVE_STATES)
    action = JobAction("cancel", "cancelled", states=states, run=_cancel, format_result=_format_cancelled)
    with connect(args) as yard:
        return run_action(yard, args, action) if targets_of(args) else _cancel_selected(yard, args)


def _cancel(yard: CoreClient, target: JobTarget, args: Namespace) -> Job:
    job = yard.cancel(target.job, reason=args.reason, tasks=target.tasks)
    if not args.wait:
        return job
    if target.tasks is not None:
        return _wait_for_tasks(yard, job, IdSet.parse(target.tasks), args.timeout)
    ended = wait_for_job(yard, job.id, timeout_s=args.timeout, quiet=True)
    return replace(ended, cancelled_tasks=job.cancelled_tasks)


def _wait_for_tasks(yard: CoreClient, job: Job, indexes: IdSet, timeout_s: float | None) -> Job:
    """Wait until these tasks have ended. The tasks that no cluster had have ended at once."""
    if job.cancelled_tasks is None or not job.cancelled_tasks.live:
        return job
    for seen in yard.watch(job.id, timeout_s=timeout_s):
        ending = (task.index for task in yard.tasks(job.id) if task.cancel_requested and task.state in LIVE_STATES)
        if seen.state not in LIVE_STATES or not any(index in indexes for index in ending):
            return replace(seen, cancelled_tasks=job.cancelled_tasks)
    return job


def _format_cancelled(job: Job) -> str:
    """`01JCQ0V7…  RUNNING: …` and for an array what became of its tasks."""
    done = job.cancelled_tasks
    if done is None:
        return format_job_line(job, now_us())
    parts = [
        f"{done.waiting} waiting cancelled" if done.waiting else "",
        f"{done.live} running asked to end" if done.live else "",
        f"{done.ended} had ended before" if done.ended else "",
    ]
    return f"{format_job_line(job, now_us())}\n  tasks: {', '.join(filter(None, parts))}"


def _cancel_selected(yard: CoreClient, args: Namespace) -> int:
    """Let the server cancel the selected jobs in bounded rounds, so that other requests are not held up."""
    selector = selector_of(yard, args)
    if args.dry_run or not args.force:
        rounds = yard.cancel_many(selector, everything=args.all, dry_run=True)
        ids = [job for round_ in rounds for job in round_.ids]
        if args.dry_run:
            return print_dry_run(ids, "cancel")
        if ids and not confirm(f"Cancel {format_job_count(len(ids))}?", force=False):
            return EXIT_ERROR
        total = len(ids)
    else:
        total = 0
    cancelled: list[str] = []
    refused = 0
    with ProgressBar("cancel", total) as progress:
        for round_ in yard.cancel_many(selector, everything=args.all, reason=args.reason):
            cancelled += round_.ids
            refused += round_.refused
            progress.show(len(cancelled), note=f"{refused} refused" if refused else "")
    if args.wait:
        wait_for_ends([JobHandle(yard, CreatedJob(job, "RUNNING")) for job in cancelled], args.timeout)
    _print_summary(yard, args, cancelled)
    if refused:
        print_notice(
            f"error: {format_job_count(refused)} of others are not yours to cancel: that needs the role operate."
        )
    return EXIT_ERROR if refused else EXIT_OK


def _print_summary(yard: CoreClient, args: Namespace, cancelled: list[str]) -> None:
    if args.output == "name":
        print("\n".join(cancelled), end="\n" if cancelled else "")
    elif not emit(fetch_jobs(yard, cancelled), args.output):
        if cancelled:
            print(f"Asked for the end of {format_job_count(len(cancelled))}.")
        else:
            print_notice("No job to cancel.")


def _parser() -> Parser:
    parser = Parser(
        "yard cancel",
        "Cancel jobs. A job that a cluster already has is CANCELLED once the cluster confirms it.",
        examples=EXAMPLES,
    )
    add_job_targets(parser)
    parser.add_argument("--tasks", metavar="SET", help="of an array only these, as in 3,5-7; the same as 'ID[3,5-7]'")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; shown with the job")
    parser.add_argument("--wait", action="store_true", help="wait until they have ended")
    parser.add_argument("--timeout", type=duration_s, metavar="T", help="with --wait: at most this long for each")
    add_shared(parser)
    return parser
