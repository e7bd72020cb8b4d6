"""`yard explain`: why a job is where it is, cluster by cluster."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.output import clean, emit, paint, paint_word
from switchyard.cli.parser import Parser, add_shared
from switchyard.cli.table import age, now_us
from switchyard.cli.verdicts import print_explanation
from switchyard.model.job import Job, State

EXAMPLES = """\
  yard explain 01JCQ0V7
  yard explain 01JCQ0V7 -o json | jq '.now[] | select(.say == "no")'
  yard submit --plan -n 4 --gpus 2 -- ./train    the same question before submitting"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard explain",
        "Say why a job is where it is: every cluster's verdict with its reason, and what would help.",
        examples=EXAMPLES,
    )
    parser.add_argument("job", metavar="ID", help="the job's id, or enough of its start")
    add_shared(parser, outputs=("json", "yaml"))
    args = parser.parse_args(argv)
    with connect(args) as yard:
        found = yard.explain(args.job)
        if args.output:
            emit(found, args.output, name=lambda each: each.job)
            return 0
        job = yard.job(found.job)
    print_heading(job)
    print_explanation(found)
    return 0


def print_heading(job: Job) -> None:
    scope = f"project={job.project} domain={job.domain} priority={job.priority}"
    where = f" on {job.cluster}" if job.cluster else ""
    facts = clean(f"{where}, submitted {age(job.created_us, now_us())} ago   {scope}")
    print(f"{paint('Job', 'bold')} {job.id}  {clean(job.name)}  {paint_word(job.state.value)}{facts}")
    if job.reason and job.state is not State.REJECTED:  # then the table below says it, cluster by cluster
        print(clean(job.reason))
