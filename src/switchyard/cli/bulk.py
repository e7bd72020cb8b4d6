"""`yard submit --bulk`: thousands of jobs from one file, with a bar, and the refusals in their places."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from switchyard.cli.output import emit_list, print_notice, printable
from switchyard.cli.progress import ProgressBar
from switchyard.errors import EXIT_OK, EXIT_REJECTED, BadRequest, Malformed, YardError
from switchyard.model.api import BulkItem, CreatedJob, Problem
from switchyard.model.decode import load_yaml, refuse_duplicates
from switchyard.model.job import JobRequest, State
from switchyard.sdk.client import Client
from switchyard.sdk.handle import JobHandle

FILE_BYTES_MAX = 512 << 20  # a million small jobs; more belongs into an array
MISTAKES_SHOWN = 20
JOBS_SHOWN = 3


def submit_bulk(yard: Client, args: Namespace, given: Mapping[str, Any]) -> int:
    """All of the file. A mistake in it is found before anything is sent."""
    requests = read_requests(args.bulk, given)
    with ProgressBar("submit", len(requests)) as progress:
        made = yard.submit_many(
            requests, each=args.each, key=args.key, batch=args.batch, on_progress=lambda done, _: progress.show(done)
        )
    jobs = [each for each in made if isinstance(each, JobHandle)]
    refused = [(place, each) for place, each in enumerate(made) if isinstance(each, YardError)]
    rejected = [job for job in jobs if job.state is State.REJECTED]
    if args.wait:
        _wait(jobs, args.timeout)
    if args.output == "name":
        print("\n".join(job.id for job in jobs), end="\n" if jobs else "")
    elif args.output:
        emit_list([_bulk_item(each) for each in made], args.output, name=lambda item: item.job.id if item.job else "")
    else:
        _print_summary(jobs, is_over=args.wait)
    for place, error in refused[:MISTAKES_SHOWN]:
        print_notice(f"error: jobs[{place}]: {error.detail}")
    if len(refused) > MISTAKES_SHOWN:
        print_notice(f"error: and {len(refused) - MISTAKES_SHOWN} more were refused.")
    if rejected:
        print_notice(f"error: {len(rejected)} were REJECTED, the first: {rejected[0].id}: {rejected[0].reason}")
    if refused:
        return refused[0][1].exit_code
    if rejected:
        return EXIT_REJECTED
    return _exit_code(jobs) if args.wait else EXIT_OK


def read_requests(file: str, given: Mapping[str, Any]) -> list[JobRequest]:
    """Every job of the file with the flags laid over it; all mistakes at once."""
    from switchyard.sdk.request import build_job_request

    requests: list[JobRequest] = []
    mistakes: list[str] = []
    for where, form in read_job_entries(file):
        try:
            requests.append(build_job_request(form, given, where=where))
        except Malformed as exc:
            mistakes.append(exc.detail)
    if mistakes:
        more = f"\n… and {len(mistakes) - MISTAKES_SHOWN} more" if len(mistakes) > MISTAKES_SHOWN else ""
        told = "\n".join(mistakes[:MISTAKES_SHOWN]) + more
        raise Malformed(
            f"{len(mistakes)} of {len(mistakes) + len(requests)} jobs are not well-formed:\n{told}",
            next_step="Correct them and submit again; nothing was sent.",
        )
    if not requests:
        raise Malformed(
            f"{_source_name(file)} has no jobs.", next_step="It holds a list of jobs, or one JSON object per line."
        )
    return requests


def read_job_entries(file: str) -> list[tuple[str, dict[str, Any]]]:
    """What the file says about each job, with the place where it says it."""
    text = _read_bytes(file)
    where = _source_name(file)
    start = text.lstrip()[:1]
    if start == b"{":
        lines = [(f"{where}, line {number}", line) for number, line in enumerate(text.splitlines(), start=1)]
        return [(place, _require_mapping(_parse_json(line, place), place)) for place, line in lines if line.strip()]
    is_json = start == b"[" and re.match(rb"\s*\[\s*(\]|\{\s*[\"}])", text) is not None
    found = _parse_json(text, where) if is_json else load_yaml(text, where=where)
    if found is None:
        return []
    if not isinstance(found, list):
        raise Malformed(f"{where}: expected a list of jobs, or one JSON object per line.")
    return [
        (f"{where}, jobs[{place}]", _require_mapping(each, f"{where}, jobs[{place}]"))
        for place, each in enumerate(found)
    ]


def _parse_json(text: bytes, where: str) -> Any:
    try:
        refuse_duplicates(text)
        return json.loads(text)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}") from exc
    except (ValueError, RecursionError) as exc:
        raise Malformed(f"{where}: not valid JSON: {exc}") from exc


def _require_mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{where}: expected fields such as `command`, not {str(value)[:40]!r}.")
    return value


def _read_bytes(file: str) -> bytes:
    try:
        if file == "-":
            text = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                text = opened.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise Malformed(
            f"Cannot read {file}: {exc.strerror}.", next_step="Name a file that is there, or - for stdin."
        ) from exc
    if len(text) > FILE_BYTES_MAX:
        raise BadRequest(
            f"{_source_name(file)} is over {FILE_BYTES_MAX} bytes.", next_step="Use an array, or several files."
        )
    return text


def _source_name(file: str) -> str:
    return "stdin" if file == "-" else file


def _wait(jobs: list[JobHandle], timeout_s: float | None) -> None:
    from switchyard.sdk.job_completion import as_completed

    with ProgressBar("ended", len(jobs)) as progress:
        for done, _ in enumerate(as_completed(jobs, timeout_s), start=1):
            progress.show(done)


def _exit_code(jobs: list[JobHandle]) -> int:
    from switchyard.cli.job_view import exit_code_of
    from switchyard.model.job import Job

    ended = (job.seen for job in jobs)
    return next((code for code in (exit_code_of(job) for job in ended if isinstance(job, Job)) if code), EXIT_OK)


def _print_summary(jobs: list[JobHandle], *, is_over: bool) -> None:
    """How many, and how they stand."""
    states: dict[str, int] = {}
    for job in jobs:
        states[job.state.value] = states.get(job.state.value, 0) + 1
    count = "1 job" if len(jobs) == 1 else f"{len(jobs):,} jobs"
    print(
        f"{count} {'ended' if is_over else 'submitted'}: " + ", ".join(f"{n:,} {state}" for state, n in states.items())
    )
    for job in jobs[:JOBS_SHOWN] if not is_over else ():
        print(printable(f"  {job.id}" + (f"  goes to {job.cluster}" if job.cluster else "")))
    if len(jobs) > JOBS_SHOWN and not is_over:
        print(f"  … `-o name` prints all {len(jobs):,} ids")


def _bulk_item(made: JobHandle | YardError) -> BulkItem:
    if isinstance(made, JobHandle):
        return BulkItem(CreatedJob(made.id, made.state.value, made.cluster, made.reason))
    kind = f"urn:switchyard:error:{made.code}"
    return BulkItem(problem=Problem(kind, made.title, made.status, made.code, made.detail, made.next_step))
