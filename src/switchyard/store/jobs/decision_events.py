"""Queries about the decisions of the router on a job. Decisions are events; few events of a job are decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from switchyard.model.job.event_kind import TASK_PREFIX, EventKind
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_all
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.clusters_tables import clusters
from switchyard.store.tables.schema import events, verdict_sets

EVENTS_SCANNED_MAX = 2000  # newest events of one job: an array has one for the end of each task


class DecisionEvent(StoredRow, frozen=True):
    """An event that records a decision, with the name of its cluster."""

    seq: int
    at_us: int
    kind: str
    state: StateName
    cluster_id: str | None
    reason: str
    cluster: str | None


# Built once: building this statement costs more than running it.
_NEWEST_EVENTS = (
    sa.select(events.c.seq, events.c.at_us, events.c.kind, events.c.state, events.c.cluster_id, events.c.reason)
    .where(events.c.job_id == sa.bindparam("p_job_id"))
    .order_by(events.c.seq.desc())
    .limit(EVENTS_SCANNED_MAX)
    .subquery()
)
_DECISIONS = (
    sa.select(_NEWEST_EVENTS, clusters.c.name.label("cluster"))
    .select_from(_NEWEST_EVENTS.outerjoin(clusters, clusters.c.id == _NEWEST_EVENTS.c.cluster_id))
    .where(_NEWEST_EVENTS.c.state.in_(sa.bindparam("p_states", expanding=True)))
    .where(_NEWEST_EVENTS.c.kind.not_in(sa.bindparam("p_except_kinds", expanding=True)))
    .where(~_NEWEST_EVENTS.c.kind.startswith(TASK_PREFIX))
    .order_by(_NEWEST_EVENTS.c.seq.desc())
    .limit(sa.bindparam("p_limit"))
)


def decision_list(
    tx: Tx, job_id: str, *, states: Collection[str], but: Collection[EventKind], limit: int
) -> list[DecisionEvent]:
    """List the newest events that left the job in one of these states, oldest first. `but`: kinds to leave out."""
    values = {
        "p_job_id": job_id,
        "p_states": sorted(states),
        "p_except_kinds": sorted(kind.value for kind in but),
        "p_limit": limit,
    }
    return fetch_all(tx, DecisionEvent, _DECISIONS, values)[::-1]


def decision_trim(tx: Tx, job_ids: Sequence[str], kind: EventKind, *, first: int, last: int) -> None:
    """Delete the events of one kind of each job, except the first `first` and the last `last`."""
    of_kind = sa.and_(events.c.job_id.in_(job_ids), events.c.kind == kind.value)
    many = sa.select(events.c.job_id).where(of_kind).group_by(events.c.job_id).having(sa.func.count() > first + last)
    for job_id in list(tx.execute(many).scalars()):
        query = (
            sa.select(events.c.seq).where(events.c.job_id == job_id, events.c.kind == kind.value).order_by(events.c.seq)
        )
        numbers = list(tx.execute(query).scalars())[first:-last]
        tx.execute(sa.delete(events).where(events.c.seq.in_(numbers)))


def verdicts_get_many(tx: Tx, hashes: Collection[str]) -> dict[str, str]:
    """Return verdict sets by their hashes, in one query."""
    query = sa.select(verdict_sets.c.hash, verdict_sets.c.body).where(verdict_sets.c.hash.in_(sorted(set(hashes))))
    return {row.hash: row.body for row in tx.execute(query)}
