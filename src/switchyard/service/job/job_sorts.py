"""List the jobs that a reader may see by priority, run time, waiting time or name."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.job.job import Job
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.jobs import job_view
from switchyard.service.lifecycle.visibility import Visibility, visible_filter
from switchyard.store.jobs import job_sorts
from switchyard.store.jobs.jobs import JobFilter

READ_MAX = 20_000  # matching jobs read: tens of milliseconds, however many there are (store/jobs/job_windows.py)
ORDERS = job_sorts.ORDERS


@dataclass(frozen=True, slots=True)
class SortedJobs:
    """`following`: the offset of the next page. `is_whole`: all jobs were sorted; else only `jobs_read` of them."""

    jobs: list[Job]
    following: int | None
    jobs_read: int
    is_whole: bool


def sorted_jobs(
    context: Context, actor: Actor, wanted: JobFilter, *, order: str, offset: int, limit: int
) -> SortedJobs:
    """Sort the newest READ_MAX jobs that match (for `oldest`: the oldest)."""
    with context.database.read() as tx:
        rows, has_more, window = job_sorts.job_sorted(
            tx,
            visible_filter(context, actor, wanted),
            order=order,
            offset=offset,
            limit=limit,
            budget=READ_MAX,
            now_us=context.now_us(),
        )
    visibility = Visibility(context, actor)
    return SortedJobs(
        [job_view(row, visibility) for row in rows],
        offset + limit if has_more else None,
        window.jobs_read if window else 0,
        window is None or window.is_whole,
    )
