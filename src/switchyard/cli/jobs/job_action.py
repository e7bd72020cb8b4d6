"""Run one action (cancel, hold, retry …) on many jobs: dry run, confirmation, parallel calls, progress, refusals."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from switchyard.cli.jobs.job_selector import JobTarget, select_jobs, targets_of
from switchyard.cli.terminal.output import confirm, emit, print_notice, printable
from switchyard.cli.terminal.progress import ProgressBar
from switchyard.errors import EXIT_ERROR, EXIT_OK, YardError
from switchyard.model.job.job import Job, State
from switchyard.sdk.client import CoreClient

PARALLEL_CALLS = 8  # as many as the client keeps connections, and no burden to the server
DRY_RUN_IDS_SHOWN = 10
REFUSALS_SHOWN = 20

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True)
class JobAction(Generic[T]):
    """An action on jobs. `states`: the job states it applies to; `format_result`: one result as one line.

    `run` gets the client, the job and the options of the command.
    """

    verb: str
    past_tense: str
    states: tuple[State, ...]
    run: Callable[[CoreClient, JobTarget, Namespace], T]
    format_result: Callable[[T], str]
    applies_to: Callable[[Job], bool] = lambda _: True


def run_action(yard: CoreClient, args: Namespace, action: JobAction[T]) -> int:
    """Run the action on the jobs that the command line names or selects."""
    targets = targets_of(args)
    if targets and not args.dry_run:
        return _print_results(args, action, *_run_all(yard, args, targets, action, parallel=1), is_named=True)
    if targets:
        jobs: Iterable[Job] = [yard.job(target.job) for target in targets]
    else:
        jobs = select_jobs(yard, args, states=action.states)
    ids = [job.id for job in jobs if action.applies_to(job)]
    if args.dry_run:
        return print_dry_run(ids, action.verb)
    if not ids:
        print_notice(f"No job to {action.verb}.")
        return EXIT_OK
    if not confirm(f"{action.verb.capitalize()} {format_job_count(len(ids))}?", force=args.force):
        return EXIT_ERROR
    targets = [JobTarget(job) for job in ids]
    return _print_results(args, action, *_run_all(yard, args, targets, action, parallel=PARALLEL_CALLS), is_named=False)


def _run_all(
    yard: CoreClient, args: Namespace, targets: Sequence[JobTarget], action: JobAction[T], *, parallel: int
) -> tuple[list[T], list[tuple[str, YardError]]]:
    """Return the results in order, and the refusals. A refusal does not stop the jobs after it."""
    results: list[T] = []
    refused: list[tuple[str, YardError]] = []

    def run(target: JobTarget) -> T | YardError:
        try:
            return action.run(yard, target, args)
        except YardError as exc:
            return exc

    with ThreadPoolExecutor(parallel) as pool, ProgressBar(action.verb, len(targets)) as progress:
        for target, result in zip(targets, pool.map(run, targets), strict=True):
            if isinstance(result, YardError):
                refused.append((target.job, result))
            else:
                results.append(result)
            progress.show(len(results) + len(refused))
    return results, refused


def _print_results(
    args: Namespace, action: JobAction[T], results: list[T], refused: list[tuple[str, YardError]], *, is_named: bool
) -> int:
    if len(refused) == 1 and not results:
        raise refused[0][1]
    if not emit(results[0] if is_named and len(args.job) == 1 else results, args.output, key="id"):
        if is_named:
            for result in results:
                print(action.format_result(result))
        else:
            print(f"{action.past_tense.capitalize()}: {format_job_count(len(results))}.")
    return print_refusals(refused)


def print_refusals(refused: Sequence[tuple[str, YardError]]) -> int:
    """Print a line for each refusal. Return the exit code of the first."""
    for job, error in refused[:REFUSALS_SHOWN]:
        print_notice(f"error: {job}: {error.detail}")
    if len(refused) > REFUSALS_SHOWN:
        print_notice(f"error: and {len(refused) - REFUSALS_SHOWN} more.")
    return refused[0][1].exit_code if refused else EXIT_OK


def print_dry_run(ids: Sequence[str], verb: str) -> int:
    """Print how many jobs the action would run on, and the first of them."""
    total = len(ids)
    print(printable(f"Would {verb} {format_job_count(total)}" + (":" if ids else ".")))
    for job in ids[:DRY_RUN_IDS_SHOWN]:
        print(f"  {job}")
    if total > DRY_RUN_IDS_SHOWN:
        print(f"  … and {total - DRY_RUN_IDS_SHOWN} more")
    return EXIT_OK


def format_job_count(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
