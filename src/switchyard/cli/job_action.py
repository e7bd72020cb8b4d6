"""One deed on many jobs: shown first, asked about, then done side by side with a bar. It knows no single deed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from switchyard.cli.job_selector import JobTarget, select_jobs, targets_of
from switchyard.cli.output import confirm, emit, emit_list, print_notice, printable
from switchyard.cli.progress import ProgressBar
from switchyard.errors import EXIT_ERROR, EXIT_OK, YardError
from switchyard.model.job import Job, State
from switchyard.sdk.client import Client

PARALLEL_CALLS = 8  # calls side by side: as many as the client keeps connections, and no burden to the server
DRY_RUN_IDS_SHOWN = 10  # ids that a dry run shows
REFUSALS_SHOWN = 20

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True)
class JobAction(Generic[T]):
    """What is done to each job. `states`: where it makes sense; `line`: one result in one line."""

    verb: str
    done: str
    states: tuple[State, ...]
    do: Callable[[Client, JobTarget], T]
    name: Callable[[T], str]
    line: Callable[[T], str]
    concerns: Callable[[Job], bool] = lambda _: True


def run_action(yard: Client, args: Namespace, deed: JobAction[T]) -> int:
    """Do it to the jobs that were named, or that the selector means."""
    targets = targets_of(args)
    if targets and not args.dry_run:
        return _print_results(args, deed, *_run_all(yard, targets, deed, at_once=1), is_named=True)
    if targets:
        found: Iterable[Job] = [yard.job(target.job) for target in targets]
    else:
        found = select_jobs(yard, args, states=deed.states)
    ids = [job.id for job in found if deed.concerns(job)]
    if args.dry_run:
        return print_dry_run(ids, deed.verb)
    if not ids:
        print_notice(f"No job to {deed.verb}.")
        return EXIT_OK
    if not confirm(f"{deed.verb.capitalize()} {format_job_count(len(ids))}?", force=args.force):
        return EXIT_ERROR
    return _print_results(
        args, deed, *_run_all(yard, [JobTarget(job) for job in ids], deed, at_once=PARALLEL_CALLS), is_named=False
    )


def _run_all(
    yard: Client, targets: Sequence[JobTarget], deed: JobAction[T], *, at_once: int
) -> tuple[list[T], list[tuple[str, YardError]]]:
    """The results in order, and what was refused. One refusal does not keep the others from it."""
    results: list[T] = []
    refused: list[tuple[str, YardError]] = []

    def one(target: JobTarget) -> T | YardError:
        try:
            return deed.do(yard, target)
        except YardError as exc:
            return exc

    with ThreadPoolExecutor(at_once) as pool, ProgressBar(deed.verb, len(targets)) as progress:
        for target, result in zip(targets, pool.map(one, targets), strict=True):
            if isinstance(result, YardError):
                refused.append((target.job, result))
            else:
                results.append(result)
            progress.show(len(results) + len(refused))
    return results, refused


def _print_results(
    args: Namespace, deed: JobAction[T], results: list[T], refused: list[tuple[str, YardError]], *, is_named: bool
) -> int:
    if len(refused) == 1 and not results:
        raise refused[0][1]
    if args.output and is_named and len(args.job) == 1:
        emit(results[0], args.output, name=deed.name)
    elif args.output:
        emit_list(results, args.output, name=deed.name)
    elif is_named:
        for result in results:
            print(deed.line(result))
    else:
        print(f"{deed.done.capitalize()}: {format_job_count(len(results))}.")
    return print_refusals(refused)


def print_refusals(refused: Sequence[tuple[str, YardError]]) -> int:
    """Each refusal as a line; the exit code of the first."""
    for job, error in refused[:REFUSALS_SHOWN]:
        print_notice(f"error: {job}: {error.detail}")
    if len(refused) > REFUSALS_SHOWN:
        print_notice(f"error: and {len(refused) - REFUSALS_SHOWN} more.")
    return refused[0][1].exit_code if refused else EXIT_OK


def print_dry_run(ids: Sequence[str], verb: str, *, more: int = 0) -> int:
    """What a dry run says: how many, and the first of them."""
    total = len(ids) + more
    print(printable(f"Would {verb} {format_job_count(total)}" + (":" if ids else ".")))
    for job in ids[:DRY_RUN_IDS_SHOWN]:
        print(f"  {job}")
    if total > DRY_RUN_IDS_SHOWN:
        print(f"  … and {total - DRY_RUN_IDS_SHOWN} more")
    return EXIT_OK


def format_job_count(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
