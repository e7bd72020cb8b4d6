"""Count the jobs that a reader may see by one of their fields, or list them by priority, time or name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from switchyard.features.dashboard.store import job_windows
from switchyard.model.job.job import Job
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.queue import Lane
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.job.jobs import job_view
from switchyard.service.lifecycle.visibility import HIDDEN, Visibility, visible_filter
from switchyard.store.jobs.jobs import JobFilter

READ_MAX = 20_000  # matching jobs read: tens of milliseconds, however many there are
GROUPS_MAX = 1000  # read; of more groups the largest are counted
GROUPED_BY = tuple(job_windows.GROUP_COLUMNS)
NONE = ""  # the name of jobs that have no value, such as pending jobs without a cluster
ORDERS = job_windows.ORDERS


@dataclass(frozen=True, slots=True)
class JobGroups:
    """Counts by name, the largest first. `is_whole`: all jobs were counted; else only the newest `jobs_read`."""

    by: str
    counts: list[tuple[str, int]]
    jobs_read: int
    is_whole: bool


def count_groups(context: Context, actor: Actor, wanted: JobFilter, *, by: str, key: str | None = None) -> JobGroups:
    """Count by a field. By `label`: by the values of the label `key`; without a key, by the keys that jobs have."""
    limit = READ_MAX if by == "label" else GROUPS_MAX
    with context.database.read() as tx:
        rows, window = job_windows.count_groups(
            tx, visible_filter(context, actor, wanted), by=by, budget=READ_MAX, limit=limit
        )
    visibility = Visibility(context, actor)
    counts: Counter[str] = Counter()
    for row in rows:
        name = row.name or NONE
        if by == "label":
            counts.update(dict.fromkeys(_label_names(name, key), row.size))
            continue
        if by == "cluster" and not visibility.sees(row.cluster_id, row.name, is_own=bool(row.is_own)):
            name = HIDDEN
        counts[Lane.read(name).queue if by == "queue" else name] += row.size
    return JobGroups(by, counts.most_common(), window.jobs_read if window else 0, window is None or window.is_whole)


def _label_names(body: str, key: str | None) -> list[str]:
    """The names that a job with these labels counts under. A row that cannot be read has no labels."""
    try:
        labels = msgspec.json.decode(body, type=dict[str, str])
    except UNREADABLE_ERRORS:
        labels = {}
    return [labels.get(key, NONE)] if key is not None else list(labels)


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
        rows, has_more, window = job_windows.job_sorted(
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
