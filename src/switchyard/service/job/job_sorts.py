"""List the jobs that a reader may see by priority, run time, waiting time or name."""

from __future__ import annotations

from switchyard.model.job import Job
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.jobs import job_view
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.service.lifecycle.visible_jobs import visible_filter
from switchyard.store import job_sorts
from switchyard.store.jobs import JobFilter

READ_MAX = 20_000  # jobs read: tens of milliseconds, however many there are
ORDERS = job_sorts.ORDERS


def sorted_jobs(
    context: Context, actor: Actor, wanted: JobFilter, *, order: str, offset: int, limit: int
) -> tuple[list[Job], int | None]:
    """Return jobs of the newest READ_MAX (of `oldest`: of the oldest), and the offset of the next page."""
    with context.database.read() as tx:
        rows, has_more = job_sorts.job_sorted(
            tx,
            visible_filter(context, actor, wanted),
            order=order,
            offset=offset,
            limit=limit,
            budget=READ_MAX,
            now_us=context.now_us(),
        )
    visibility = Visibility(context, actor)
    return [job_view(row, visibility) for row in rows], offset + limit if has_more else None
