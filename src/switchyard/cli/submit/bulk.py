"""`yard submit --bulk`: submit thousands of jobs from one file, with a progress bar."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from switchyard.cli.jobs.job_action import format_job_count
from switchyard.cli.jobs.job_view import created_job, exit_code_of
from switchyard.cli.jobs.wait_view import wait_for_ends
from switchyard.cli.submit.submit_files import name_files, refuse_missing_files, send_files, split_files
from switchyard.cli.submit.submit_tokens import print_stale_tokens
from switchyard.cli.terminal.output import emit, print_notice, printable
from switchyard.cli.terminal.progress import ProgressBar
from switchyard.errors import EXIT_OK, EXIT_REJECTED, BadRequest, Malformed, YardError
from switchyard.model.job.job import Job, JobRequest, State
from switchyard.model.wire.api import BulkItem, Problem
from switchyard.model.wire.decode import load_yaml, refuse_duplicates
from switchyard.sdk.client import CoreClient
from switchyard.sdk.files.file_request import FileRequest
from switchyard.sdk.jobs.handle import JobHandle

FILE_BYTES_MAX = 512 << 20  # a million small jobs; more belongs into an array
MISTAKES_SHOWN = 20
JOBS_SHOWN = 3


Entry = tuple[JobRequest, FileRequest] | BadRequest  # a job of the file, or what is wrong with it


def submit_bulk(yard: CoreClient, args: Namespace, flags: Mapping[str, Any]) -> int:
    """Submit all jobs of the file. Mistakes in it are told before anything is sent; with --each the other jobs go."""
    entries = read_requests(args.bulk, flags, args)
    requests = send_files(yard, [entry for entry in entries if not isinstance(entry, BadRequest)])
    with ProgressBar("submit", len(requests)) as progress:
        answers = iter(
            yard.submit_many(
                requests,
                each=args.each,
                key=args.key,
                batch=args.batch,
                on_progress=lambda done, _: progress.show(done),
            )
        )
    results = [entry if isinstance(entry, BadRequest) else next(answers) for entry in entries]
    jobs = [result for result in results if isinstance(result, JobHandle)]
    print_stale_tokens(name for job in jobs for name in created_job(job).stale_tokens)
    refused = [(place, result) for place, result in enumerate(results) if isinstance(result, YardError)]
    rejected = [job for job in jobs if job.state is State.REJECTED]
    if args.wait:
        wait_for_ends(jobs, args.timeout)
    if args.output == "name":
        print("\n".join(job.id for job in jobs), end="\n" if jobs else "")
    elif not emit([_bulk_item(result) for result in results], args.output):
        _print_summary(jobs, is_over=args.wait)
    for place, error in refused[:MISTAKES_SHOWN]:
        print_notice(f"error: jobs[{place}]: {error.detail}")
    if len(refused) > MISTAKES_SHOWN:
        print_notice(f"error: and {len(refused) - MISTAKES_SHOWN} more were refused.")
    if any(isinstance(entry, BadRequest) for entry in entries):
        print_notice("next: Submit the corrected jobs alone, with another --key: the others were sent.")
    if rejected:
        print_notice(f"error: {len(rejected)} were REJECTED, the first: {rejected[0].id}: {rejected[0].reason}")
    if refused:
        return refused[0][1].exit_code
    if rejected:
        return EXIT_REJECTED
    return _exit_code(jobs) if args.wait else EXIT_OK


def read_requests(file: str, flags: Mapping[str, Any], args: Namespace) -> list[Entry]:
    """Return a request for each job of the file, with the flags laid over it, and its local files.

    Raise with all mistakes at once. With --each, an entry may be its mistake, unless all are.
    """
    entries = [_read_request(where, form, file, flags, args) for where, form in read_job_entries(file)]
    if args.each:
        entries = _without_malformed(entries)
    mistakes = [entry.detail for entry in entries if isinstance(entry, BadRequest)]
    if mistakes and (not args.each or len(mistakes) == len(entries)):
        more = f"\n… and {len(mistakes) - MISTAKES_SHOWN} more" if len(mistakes) > MISTAKES_SHOWN else ""
        lines = "\n".join(mistakes[:MISTAKES_SHOWN]) + more
        raise Malformed(
            f"{len(mistakes)} of {len(entries)} jobs are not well-formed:\n{lines}",
            next_step="Correct them and submit again; nothing was sent.",
        )
    if not entries:
        raise Malformed(
            f"{_source_name(file)} has no jobs.", next_step="It holds a list of jobs, or one JSON object per line."
        )
    return entries


def _read_request(
    where: str, form: dict[str, Any] | BadRequest, file: str, flags: Mapping[str, Any], args: Namespace
) -> Entry:
    from switchyard.sdk.transport.request import build_job_request

    if isinstance(form, BadRequest):
        return form
    try:
        plain, files = split_files(form, args, file=file, where=where)
        request = build_job_request(plain, flags, where=where)
        name_files(request, files)
        refuse_missing_files(request, files, where=where)
    except BadRequest as exc:
        return exc
    return request, files


def _without_malformed(entries: list[Entry]) -> list[Entry]:
    """Leave out jobs that wait for one that is not well-formed, and number the others as they will be sent."""
    waiting: dict[int, list[int]] = {}
    for place, entry in enumerate(entries):
        for number in _numbers_of(entry):
            waiting.setdefault(number, []).append(place)
    left_out = [place for place, entry in enumerate(entries) if isinstance(entry, BadRequest)]
    for place in left_out:  # it grows
        for dependent in waiting.pop(place, ()):
            if not isinstance(entries[dependent], BadRequest):
                entries[dependent] = BadRequest(f"It is to begin after job #{place}, which is not sent.")
                left_out.append(dependent)
    gone = sorted(left_out)
    return [entry if isinstance(entry, BadRequest) or not gone else _renumbered(entry, gone) for entry in entries]


def _numbers_of(entry: Entry) -> list[int]:
    """The places in the file of the jobs that this one waits for."""
    after = () if isinstance(entry, BadRequest) else entry[0].after
    return [int(text[1:].partition(":")[0]) for text in after if text.startswith("#")]


def _renumbered(entry: tuple[JobRequest, FileRequest], gone: list[int]) -> Entry:
    request, files = entry
    if not _numbers_of(entry):
        return entry
    after = []
    for text in request.after:
        place, colon, condition = text.partition(":")
        number = f"#{int(place[1:]) - bisect_left(gone, int(place[1:]))}" if place.startswith("#") else place
        after.append(f"{number}{colon}{condition}")
    return replace(request, after=after), files


def read_job_entries(file: str) -> list[tuple[str, dict[str, Any] | BadRequest]]:
    """Return the fields of each job, or what is wrong with it, with its position in the file for error messages."""
    text = _read_bytes(file)
    where = _source_name(file)
    start = text.lstrip()[:1]
    if start == b"{":
        lines = [(f"{where}, line {number}", line) for number, line in enumerate(text.splitlines(), start=1)]
        return [(place, _read_line(line, place)) for place, line in lines if line.strip()]
    is_json = start == b"[" and re.match(rb"\s*\[\s*(\]|\{\s*[\"}])", text) is not None
    entries = _parse_json(text, where) if is_json else load_yaml(text, where=where)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise Malformed(f"{where}: expected a list of jobs, or one JSON object per line.")
    return [
        (f"{where}, jobs[{place}]", _mapping_or_mistake(entry, f"{where}, jobs[{place}]"))
        for place, entry in enumerate(entries)
    ]


def _read_line(line: bytes, where: str) -> dict[str, Any] | BadRequest:
    try:
        return _mapping_or_mistake(_parse_json(line, where), where)
    except Malformed as exc:
        return exc


def _parse_json(text: bytes, where: str) -> Any:
    try:
        refuse_duplicates(text)
        return json.loads(text)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}") from exc
    except (ValueError, RecursionError) as exc:
        raise Malformed(f"{where}: not valid JSON: {exc}") from exc


def _mapping_or_mistake(value: Any, where: str) -> dict[str, Any] | BadRequest:
    if not isinstance(value, dict):
        return Malformed(f"{where}: expected fields such as `command`, not {str(value)[:40]!r}.")
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


def _exit_code(jobs: list[JobHandle]) -> int:
    codes = (exit_code_of(job.seen) for job in jobs if isinstance(job.seen, Job))
    return next((code for code in codes if code), EXIT_OK)


def _print_summary(jobs: list[JobHandle], *, is_over: bool) -> None:
    """Print the number of jobs by state, and the first ids."""
    states: dict[str, int] = {}
    for job in jobs:
        states[job.state.value] = states.get(job.state.value, 0) + 1
    counts = ", ".join(f"{count:,} {state}" for state, count in states.items())
    print(f"{format_job_count(len(jobs))} {'ended' if is_over else 'submitted'}: {counts}")
    for job in jobs[:JOBS_SHOWN] if not is_over else ():
        print(printable(f"  {job.id}" + (f"  goes to {job.cluster}" if job.cluster else "")))
    if len(jobs) > JOBS_SHOWN and not is_over:
        print(f"  … `-o name` prints all {len(jobs):,} ids")


def _bulk_item(result: JobHandle | YardError) -> BulkItem:
    if isinstance(result, JobHandle):
        return BulkItem(created_job(result))
    kind = f"urn:switchyard:error:{result.code}"
    return BulkItem(
        problem=Problem(
            kind, result.title, status=result.status, code=result.code, detail=result.detail, next_step=result.next_step
        )
    )
