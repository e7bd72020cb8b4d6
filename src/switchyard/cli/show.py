"""`yard show`: one job in full."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.cli.connect import connect, get_or_none
from switchyard.cli.job_view import print_job
from switchyard.cli.output import emit
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.refresh import refresh_until_done, refuse_output_option
from switchyard.cli.table import now_us
from switchyard.model.files import OutputSet
from switchyard.model.job import Job, JobSpec
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.sdk.client import Client
from switchyard.sdk.file_calls import latest_outputs

OUTPUTS_READ_MAX = 1000  # of a large array the first ones say enough

EXAMPLES = """\
  yard show 01JCQ0V7                       the start of an id is enough
  yard show 01JCQ0V7 -o json | jq .exit_code
  yard show 01JCQ0V7 --watch               again each second, until it has ended"""


def main(argv: list[str]) -> int:
    parser = Parser("yard show", "Show jobs in full: what was asked, where it went, how it ended.", examples=EXAMPLES)
    parser.add_argument("job", nargs="+", metavar="ID", help="a job's id, or enough of its start")
    parser.add_argument("--watch", action="store_true", help="show it again each second, until it has ended")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        if args.watch:
            refuse_output_option(args)
            return refresh_until_done(lambda: _show(yard, [yard.job(job) for job in args.job]))
        jobs = [yard.job(job) for job in args.job]
        if not emit(jobs[0] if len(jobs) == 1 else jobs, args.output, key="id"):
            _show(yard, jobs)
    return 0


def _show(yard: Client, jobs: Sequence[Job]) -> bool:
    """Print the jobs. Return whether all have ended."""
    outputs = [_outputs_of(yard, job) for job in jobs]  # before anything is printed
    for index, job in enumerate(jobs):
        if index:
            print()
        print_job(job, now_us(), outputs=outputs[index])
    return all(job.state in FINAL_STATES for job in jobs)


def _outputs_of(yard: Client, job: Job) -> list[OutputSet]:
    """Return the last output files of each task, if the job keeps any."""
    if not isinstance(job.spec, JobSpec) or job.spec.files is None or not job.spec.files.out:
        return []
    found = get_or_none(lambda: yard.files_of(job.id, limit=OUTPUTS_READ_MAX))
    return [] if found is None else latest_outputs(found.outputs)
