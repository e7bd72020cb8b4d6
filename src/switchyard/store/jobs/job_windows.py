"""Find how far back a bounded query must read so that its filter has enough matching jobs."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.jobs.jobs import JobFilter, filter_conditions
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import jobs

WINDOWS_MAX = 10  # a filter that few jobs match reads so many windows, and no more


@dataclass(frozen=True, slots=True)
class JobWindow:
    """A range of job ids. `is_whole`: there is no older job (from the oldest jobs on: no newer job)."""

    lowest: str
    highest: str
    jobs_read: int
    is_whole: bool


def find_window(tx: Tx, wanted: JobFilter, *, budget: int, is_oldest: bool = False) -> JobWindow | None:
    """Return the newest jobs among which `budget` jobs match, with `is_oldest` the oldest ones. None: there are none.

    Reads `budget` jobs at a time and at most WINDOWS_MAX times as many. So the jobs of one busy user do not hide the
    jobs of others, and the cost stays bounded.
    """
    has_filter = bool(filter_conditions(wanted))
    lowest = highest = None
    jobs_read = matching = 0
    while True:
        window = sa.select(jobs.c.id).order_by(jobs.c.id.asc() if is_oldest else jobs.c.id.desc()).limit(budget)
        if wanted.oldest is not None:
            window = window.where(jobs.c.id >= wanted.oldest)
        if lowest is not None:
            window = window.where(jobs.c.id > highest if is_oldest else jobs.c.id < lowest)
        ids = window.subquery().c.id
        first, last, size = tx.execute(sa.select(sa.func.min(ids), sa.func.max(ids), sa.func.count())).one()
        jobs_read += size
        if size:
            lowest, highest = min(lowest or first, first), max(highest or last, last)
        is_whole = size < budget
        if not is_whole and has_filter:
            matching += _count_matching(tx, wanted, first, last)
        if is_whole or not has_filter or matching >= budget or jobs_read >= budget * WINDOWS_MAX:
            return None if lowest is None or highest is None else JobWindow(lowest, highest, jobs_read, is_whole)


def _count_matching(tx: Tx, wanted: JobFilter, lowest: str, highest: str) -> int:
    query = (
        sa.select(sa.func.count())
        .select_from(jobs.outerjoin(clusters, clusters.c.id == jobs.c.cluster_id))
        .where(jobs.c.id >= lowest, jobs.c.id <= highest, *filter_conditions(wanted))
    )
    count: int = tx.execute(query).scalar_one()
    return count
