"""Queries about the answers the router gave a job: they are events, and few of a job's events are decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import clusters, events, verdict_sets

Row = sa.Row[*tuple[Any, ...]]

EVENTS_SCANNED_MAX = 2000  # events of one job looked at: an array has one for each of its tasks' ends


# Built once: making this statement costs more than running it. `the_states`, `the_others`: kinds that are none.
_NEWEST_EVENTS = (
    sa.select(events.c.seq, events.c.at_us, events.c.kind, events.c.state, events.c.cluster_id, events.c.reason)
    .where(events.c.job_id == sa.bindparam("the_job"))
    .order_by(events.c.seq.desc())
    .limit(EVENTS_SCANNED_MAX)
    .subquery()
)
_DECISIONS = (
    sa.select(_NEWEST_EVENTS, clusters.c.name.label("cluster"))
    .select_from(_NEWEST_EVENTS.outerjoin(clusters, clusters.c.id == _NEWEST_EVENTS.c.cluster_id))
    .where(_NEWEST_EVENTS.c.state.in_(sa.bindparam("the_states", expanding=True)))
    .where(_NEWEST_EVENTS.c.kind.not_in(sa.bindparam("the_others", expanding=True)))
    .where(~_NEWEST_EVENTS.c.kind.startswith("task-"))
    .order_by(_NEWEST_EVENTS.c.seq.desc())
    .limit(sa.bindparam("the_limit"))
)


def decision_list(tx: Tx, job_id: str, *, states: Collection[str], but: Collection[str], limit: int) -> list[Row]:
    """The newest events that left the job in one of these states, but for some kinds; the oldest of them first."""
    given = {"the_job": job_id, "the_states": sorted(states), "the_others": sorted(but), "the_limit": limit}
    return list(reversed(list(tx.execute(_DECISIONS, given))))


def decision_trim(tx: Tx, job_ids: Sequence[str], kind: str, *, first: int, last: int) -> None:
    """Of each job's events of one kind keep the first and the last so many."""
    of_kind = sa.and_(events.c.job_id.in_(job_ids), events.c.kind == kind)
    many = sa.select(events.c.job_id).where(of_kind).group_by(events.c.job_id).having(sa.func.count() > first + last)
    for job_id in list(tx.execute(many).scalars()):
        query = sa.select(events.c.seq).where(events.c.job_id == job_id, events.c.kind == kind).order_by(events.c.seq)
        gone = list(tx.execute(query).scalars())[first:-last]
        tx.execute(sa.delete(events).where(events.c.seq.in_(gone)))


def verdicts_get_many(tx: Tx, hashes: Collection[str]) -> dict[str, str]:
    """Verdict sets by their hashes, in one query."""
    query = sa.select(verdict_sets.c.hash, verdict_sets.c.body).where(verdict_sets.c.hash.in_(sorted(set(hashes))))
    return {row.hash: row.body for row in tx.execute(query)}
