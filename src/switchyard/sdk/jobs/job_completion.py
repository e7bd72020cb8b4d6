"""Yields handles as their jobs end, polling many jobs in few requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from switchyard.errors import TimedOut
from switchyard.model.job.job import Job
from switchyard.sdk.jobs.handle import JobHandle
from switchyard.sdk.jobs.job_calls import JobCalls

IDS_MAX = 90  # ids in one query: the server takes a hundred parameters
POLL_S_FIRST = 0.1  # between two polls: soon at first, for short jobs,
POLL_S_MAX = 1.0  # then growing up to this


def as_completed(handles: Iterable[JobHandle], timeout_s: float | None = None) -> Iterator[JobHandle]:
    """Yield the handles in the order in which their jobs end. Raise TimedOut after `timeout_s`; the jobs go on.

    >>> for job in as_completed(client.submit_many(commands)):
    ...     print(job.id, job.state, job.exit_code)
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    waiting = {handle.id: handle for handle in handles}
    total = len(waiting)
    pause_s = POLL_S_FIRST
    while waiting:
        over = [handle for handle in waiting.values() if handle.is_final] or list(_fetch_ended(list(waiting.values())))
        for handle in over:
            del waiting[handle.id]
            yield handle
        if over:
            pause_s = POLL_S_FIRST
            continue
        left_s = POLL_S_MAX if end is None else end - time.monotonic()
        if left_s <= 0:
            raise TimedOut(f"{len(waiting)} of {total} jobs have not ended after {timeout_s:g} s.")
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, POLL_S_MAX)


def _fetch_ended(handles: Sequence[JobHandle]) -> Iterator[JobHandle]:
    """Fetch the jobs of these handles. Yield the handles whose jobs have ended."""
    by_client: dict[int, list[JobHandle]] = {}
    for handle in handles:
        by_client.setdefault(id(handle.client), []).append(handle)
    for group in by_client.values():
        by_id = {handle.id: handle for handle in group}
        for job in fetch_jobs(group[0].client, list(by_id)):
            by_id[job.id].update(job)
            if by_id[job.id].is_final:
                yield by_id[job.id]


def fetch_jobs(client: JobCalls, ids: Sequence[str]) -> Iterator[Job]:
    """Fetch the current state of these jobs, IDS_MAX per request."""
    for start in range(0, len(ids), IDS_MAX):
        yield from client.jobs(ids=ids[start : start + IDS_MAX], retry_s=client._patience_s())
