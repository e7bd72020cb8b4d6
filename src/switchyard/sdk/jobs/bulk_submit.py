"""Submits thousands of jobs in batches, each with its own idempotency key. It opens no connection itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from switchyard import errors
from switchyard.errors import BadRequest, YardError
from switchyard.model.job.job import JobRequest
from switchyard.model.wire.api import BULK_JOBS_MAX, BULK_WHOLE_MAX, BulkAnswer, BulkItem
from switchyard.sdk.files.file_calls import FileCalls
from switchyard.sdk.jobs.handle import JobHandle
from switchyard.sdk.rules.graphs import OnProgress

BATCH_JOBS = 1000  # a request takes the server some tens of milliseconds
SendBatch = Callable[[Sequence[JobRequest], str], BulkAnswer]
SubmitResult = JobHandle | YardError


def submit_batches(
    client: FileCalls,
    requests: Sequence[JobRequest],
    *,
    send: SendBatch,
    key: str,
    batch: int,
    on_progress: OnProgress | None,
) -> list[SubmitResult]:
    """Return one handle per job, in order. With `each`, a refused job has an error in place of its handle.

    `#3` in `after` means the fourth of all jobs, in whichever batch it was sent.
    """
    if not isinstance(batch, int) or not 1 <= batch <= BULK_JOBS_MAX:
        raise BadRequest(f"A batch has 1 to {BULK_JOBS_MAX:,} jobs, not {batch}.")
    batch = min(batch, BULK_WHOLE_MAX)  # the server's limit for all-or-none and dependent jobs
    results: list[SubmitResult] = []
    for start in range(0, len(requests), batch):
        jobs = [_resolve_references(job, start, results) for job in requests[start : start + batch]]
        try:
            answer = send(jobs, key if len(requests) <= batch else f"{key}.{start // batch}")
        except YardError as exc:
            raise _with_jobs_made(exc, start, len(requests)) from exc
        results += [_result_of(client, item) for item in answer.items]
        if on_progress:
            on_progress(len(results), len(requests))
    return results


def _resolve_references(job: JobRequest, start: int, results: Sequence[SubmitResult]) -> JobRequest:
    """Replace references to jobs of earlier batches by ids, and renumber the others for this batch."""
    if not any(text.startswith("#") for text in job.after):
        return job
    return msgspec.structs.replace(job, after=[_resolve_reference(text, start, results) for text in job.after])


def _resolve_reference(text: str, start: int, results: Sequence[SubmitResult]) -> str:
    place, colon, condition = text.partition(":")
    if not place.startswith("#"):
        return text
    number = int(place[1:])
    if number >= start:
        return f"#{number - start}{colon}{condition}"
    earlier = results[number]
    if isinstance(earlier, YardError):
        raise BadRequest(f"A job is to begin after job {place}, which was refused: {earlier.detail}")
    return f"{earlier.id}{colon}{condition}"


def _result_of(client: FileCalls, item: BulkItem) -> SubmitResult:
    if item.job is not None:
        return JobHandle(client, item.job)
    problem: Any = item.problem
    kind = errors.ERRORS_BY_CODE.get(problem.code, YardError)
    return kind(problem.detail or problem.title, next_step=problem.next_step)


def _with_jobs_made(exc: YardError, start: int, total: int) -> YardError:
    """Return the error with the number of jobs that were created before it."""
    if start == 0:
        return exc
    detail = f"The first {start} of {total} jobs were made; from there on none. {exc.detail}"
    advice = "Submit the rest, or all of it again with the same key: what was made is not made twice."
    return type(exc)(detail, next_step=f"{exc.next_step} {advice}".strip())
