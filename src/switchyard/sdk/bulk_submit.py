"""Thousands of jobs in few requests: cut into batches, each with its own idempotency key. It knows no socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from switchyard import errors
from switchyard.errors import BadRequest, YardError
from switchyard.model.api import BULK_JOBS_MAX, BULK_WHOLE_MAX, BulkAnswer, BulkItem
from switchyard.model.job import JobRequest
from switchyard.sdk.graphs import OnProgress
from switchyard.sdk.handle import JobHandle

if TYPE_CHECKING:
    from switchyard.sdk.client import Client

BATCH_JOBS = 1000  # jobs in one request: some tens of milliseconds of the server's time
SendBatch = Callable[[Sequence[JobRequest], str], BulkAnswer]
SubmitResult = JobHandle | YardError


def submit_batches(
    client: Client,
    requests: Sequence[JobRequest],
    *,
    send: SendBatch,
    key: str,
    batch: int,
    on_progress: OnProgress | None,
) -> list[SubmitResult]:
    """One handle per job, in order; with `each` an error in place of one that was refused.

    `#3` in `after` is the fourth job of all, in whichever request it went.
    """
    if not 1 <= batch <= BULK_JOBS_MAX:
        raise BadRequest(f"A batch has 1 to {BULK_JOBS_MAX:,} jobs, not {batch}.")
    batch = min(batch, BULK_WHOLE_MAX)  # the server takes no more that are made all or none, or wait for each other
    made: list[SubmitResult] = []
    for start in range(0, len(requests), batch):
        some = [_resolve_references(job, start, made) for job in requests[start : start + batch]]
        try:
            answer = send(some, key if len(requests) <= batch else f"{key}.{start // batch}")
        except YardError as exc:
            raise _with_jobs_made(exc, start, len(requests)) from exc
        made += [_result_of(client, item) for item in answer.items]
        if on_progress:
            on_progress(len(made), len(requests))
    return made


def _resolve_references(job: JobRequest, start: int, made: Sequence[SubmitResult]) -> JobRequest:
    """The job with its references as this request needs them: ids for what was made before it."""
    if not any(text.startswith("#") for text in job.after):
        return job
    return msgspec.structs.replace(job, after=[_resolve_reference(text, start, made) for text in job.after])


def _resolve_reference(text: str, start: int, made: Sequence[SubmitResult]) -> str:
    place, colon, condition = text.partition(":")
    if not place.startswith("#"):
        return text
    number = int(place[1:])
    if number >= start:
        return f"#{number - start}{colon}{condition}"
    earlier = made[number]
    if isinstance(earlier, YardError):
        raise BadRequest(f"A job is to begin after job {place}, which was refused: {earlier.detail}")
    return f"{earlier.id}{colon}{condition}"


def _result_of(client: Client, item: BulkItem) -> SubmitResult:
    if item.job is not None:
        return JobHandle(client, item.job)
    problem: Any = item.problem
    kind = errors.ERRORS_BY_CODE.get(problem.code, YardError)
    return kind(problem.detail or problem.title, next_step=problem.next_step)


def _with_jobs_made(exc: YardError, start: int, total: int) -> YardError:
    """The refusal, with what became of the jobs before it."""
    if start == 0:
        return exc
    told = f"The first {start} of {total} jobs were made; from there on none. {exc.detail}"
    again = "Submit the rest, or all of it again with the same key: what was made is not made twice."
    return type(exc)(told, next_step=f"{exc.next_step} {again}".strip())
