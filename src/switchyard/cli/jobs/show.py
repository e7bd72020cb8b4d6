"""`yard show`: one job in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from switchyard.cli.jobs.job_selector import parse_task
from switchyard.cli.jobs.job_view import format_outputs, keeps_outputs, print_job
from switchyard.cli.jobs.task_view import emit_jobs_and_tasks, print_task
from switchyard.cli.terminal.connect import connect, get_or_none
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.refresh import refresh_until_done, refuse_output_option
from switchyard.cli.terminal.table import now_us
from switchyard.model.files.files import OutputSet
from switchyard.model.job.job import Job, Task
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.sdk.client import CoreClient
from switchyard.sdk.files.absent_outputs import KnownOutputs, show_tasks
from switchyard.sdk.files.file_calls import latest_outputs

OUTPUTS_READ_MAX = 1000  # of a large array the first ones say enough

EXAMPLES = """\
  yard show 01JCQ0V7                       the start of an id is enough
  yard show 01JCQ0V7 -o json | jq .exit_code
  yard show '01JCQ0V7[4]'                  one task of an array, with its earlier attempts
  yard show 01JCQ0V7 --watch               again each second, until it has ended"""


def main(argv: list[str]) -> int:
    parser = Parser("yard show", "Show jobs in full: what was asked, where it went, how it ended.", examples=EXAMPLES)
    parser.add_argument(
        "job", nargs="+", metavar="ID", help="a job's id, or enough of its start; ID[4]: a task of an array"
    )
    parser.add_argument("--watch", action="store_true", help="show it again each second, until it has ended")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        if args.watch:
            refuse_output_option(args)
            return refresh_until_done(lambda: _show(yard, [_read(yard, text) for text in args.job]))
        shown = [_read(yard, text) for text in args.job]
        items = [(item.job.id, item.task) if item.task else (item.job.id, item.job) for item in shown]
        if not emit_jobs_and_tasks(items, args.output):
            _show(yard, shown)
    return 0


class _Shown(NamedTuple):
    """A job, and one task of it if the command line names one."""

    job: Job
    task: Task | None


def _read(yard: CoreClient, text: str) -> _Shown:
    job, index = parse_task(text)
    return _Shown(yard.job(job), None if index is None else yard.task(job, index))


def _show(yard: CoreClient, shown: Sequence[_Shown]) -> bool:
    """Print the jobs and tasks. Return whether all have ended."""
    outputs = [_outputs_of(yard, item.job) if item.task is None else "" for item in shown]  # before anything is printed
    for index, (job, task) in enumerate(shown):
        if index:
            print()
        if task is None:
            print_job(job, now_us(), outputs=outputs[index])
        else:
            print_task(job, task)
    return all((task or job).state in FINAL_STATES for job, task in shown)


def _outputs_of(yard: CoreClient, job: Job) -> str:
    """Say what is known of the output files of the job, and whose files are not known yet."""
    found = get_or_none(lambda: yard.files_of(job.id, limit=OUTPUTS_READ_MAX)) if keeps_outputs(job) else None
    if found is None:
        return ""
    latest = latest_outputs(found.outputs)
    return format_outputs(job.id, latest, _absent_text(yard, job, latest) if job.state in FINAL_STATES else "")


def _absent_text(yard: CoreClient, job: Job, latest: list[OutputSet]) -> str:
    """`none yet from tasks 3,5-6`: of an ended job, the attempts of which no cluster has spoken."""
    counts, known = job.tasks, job.outputs
    if counts is None or known is None:
        return "none yet: its cluster has not spoken of them" if KnownOutputs(job, latest).is_any_awaited else ""
    if counts.total <= OUTPUTS_READ_MAX:
        tasks = get_or_none(lambda: list(yard.tasks(job.id, limit=OUTPUTS_READ_MAX))) or []
        late = show_tasks(task.index for task in KnownOutputs(job, latest, tasks).awaited if task.outputs is None)
        return f"none yet from {late}" if late else ""
    late_count = counts.ok + counts.failed - known.ready - known.uploading - known.failed
    return f"none yet from {late_count} tasks" if late_count > 0 else ""
