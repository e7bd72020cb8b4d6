"""`yard explain`: why a job is where it is, with each cluster's verdict; or what an error code means."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from switchyard.cli.jobs.job_selector import parse_task
from switchyard.cli.jobs.job_view import format_place
from switchyard.cli.jobs.task_view import print_task
from switchyard.cli.jobs.verdicts import print_explanation, print_wrapped_table, print_wrapped_text
from switchyard.cli.rules.policy import print_used_values
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, paint, paint_state, printable
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import Column, format_age, format_duration, now_us
from switchyard.errors import ERRORS_BY_CODE, BadRequest
from switchyard.model.cluster.verdict import Answer, Decision, Explanation
from switchyard.model.job.job import Job, State
from switchyard.model.rules.queue import QueuePosition

EXAMPLES = """\
  yard explain 01JCQ0V7
  yard explain '01JCQ0V7[4]'                     one task of an array, and then its array
  yard explain 01JCQ0V7 -o json | jq '.now[] | select(.say == "no")'
  yard submit --plan -n 4 --gpus 2 -- ./train    the same question before submitting
  yard explain key-reused                        an error code: what it means, and what to do"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard explain",
        "Say why a job is where it is: every cluster's verdict with its reason, what would let it run, its place in\n"
        "its queue, its rules, and what was decided before.\n"
        "Or what an error code means, such as key-reused.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "job", metavar="ID", help="the job's id, or enough of its start; ID[4]: a task; or an error code"
    )
    add_shared(parser, outputs=("json", "yaml"))
    args = parser.parse_args(argv)
    if args.job.lower() in ERRORS_BY_CODE:
        return _explain_code(args.job.lower(), args)
    if "-" in args.job and "[" not in args.job:
        raise _unknown_code(args.job)
    job_id, index = parse_task(args.job)
    with connect(args) as yard:
        task = None if index is None else yard.task(job_id, index)
        explanation = yard.explain(job_id)
        if emit(explanation, args.output, key="job"):
            return 0
        job = yard.job(explanation.job)
    if task is not None:
        print_task(job, task)
        print()
    print_heading(job, explanation)
    print_explanation(explanation, tasks=job.tasks_by_cluster)
    if explanation.standing is not None:
        print()
        print_queue_position(explanation.standing)
    if explanation.policy is not None and explanation.policy.values:
        print(paint("\nRules it was admitted under:", "bold"))
        print_used_values(explanation.policy.values)
    print_decisions(explanation.history)
    return 0


def print_heading(job: Job, explanation: Explanation) -> None:
    where = f" on {place}" if (place := format_place(job)) else ""
    print(f"{paint('Job', 'bold')} {job.id}  {printable(job.name)}  {paint_state(job.state.value)}{printable(where)}")
    scope = f"project {job.project}, domain {job.domain}, priority {job.priority}"
    print_wrapped_text(f"submitted {format_age(job.created_us, now_us())} ago by {job.owner}; {scope}")
    # If all clusters refused, the table of verdicts has the reasons.
    has_all_reasons = explanation.plan is not None and all(
        verdict.say is Answer.NO for verdict in explanation.plan.verdicts
    )
    if job.reason and not (job.state is State.REJECTED and has_all_reasons):
        print_wrapped_text(job.reason)


def _explain_code(code: str, args: Namespace) -> int:
    from switchyard.cli.jobs.error_meanings import ERROR_MEANINGS

    if args.output:
        raise BadRequest("A code is explained in words only.", next_step="Leave -o away.")
    error, meaning = ERRORS_BY_CODE[code], ERROR_MEANINGS[code]
    print(f"{paint(code, 'bold')}  HTTP {error.status}, exit code {error.exit_code}")
    print(meaning.means)
    for title, lines in (("Usual causes:", meaning.causes), ("What to do:", meaning.steps)):
        print(paint(f"\n{title}", "bold"))
        for line in lines:
            print(f"  · {line}")
    return 0


def _unknown_code(text: str) -> BadRequest:
    from difflib import get_close_matches

    close = get_close_matches(text.lower(), ERRORS_BY_CODE, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return BadRequest(
        f"{text!r} is neither a job's id nor an error code.", next_step=f"{guess}Codes: {', '.join(ERRORS_BY_CODE)}."
    )


SHARES_SHOWN = 8
DECISION_COLUMNS = (Column("WHEN"), Column("WHAT"), Column("STATE"), Column("CLUSTER"), Column("WHY"))
DECISIONS_SHOWN = 20  # the newest


def print_queue_position(standing: QueuePosition) -> None:
    """Print the job's place, the limits it waits for, and the shares that order jobs of equal priority."""
    ahead = f"{standing.ahead}{'+' * standing.is_more} ahead of it"
    text = f"Queue {standing.queue}: number {standing.position} ({ahead}), priority {standing.priority}"
    print(paint(printable(text), "bold"))
    if standing.limit is not None:
        print(printable(f"  {standing.running or 0} of at most {standing.limit} run in {standing.queue}"))
    if standing.project_limit is not None:
        print(f"  {standing.project_running or 0} of at most {standing.project_limit} of its project run there")
    for share in standing.shares[:SHARES_SHOWN]:
        cores = "1 core" if share.cores == 1 else f"{share.cores} cores"
        print(printable(f"  {share.project}: {cores} at weight {share.weight:g}, share {share.share:g}"))
    if len(standing.shares) > SHARES_SHOWN:
        print(f"  and {len(standing.shares) - SHARES_SHOWN} more projects")
    if standing.shares:
        print("  Of equal priority, the project with the least share comes first.")


def print_decisions(history: Sequence[Decision]) -> None:
    """Print the newest decisions about a job, oldest first. A single decision is in the table of verdicts."""
    if len(history) < 2:
        return
    left_out = len(history) - DECISIONS_SHOWN
    print(paint(f"\nHistory{f', the last {DECISIONS_SHOWN} of {len(history)}' if left_out > 0 else ''}:", "bold"))
    print_wrapped_table(DECISION_COLUMNS, [_decision_cells(decision) for decision in history[-DECISIONS_SHOWN:]])


def _decision_cells(decision: Decision) -> list[str]:
    age = f"{format_duration(now_us() - decision.at_us)} ago"
    return [age, decision.what, decision.state, decision.cluster or "", decision.reason]
