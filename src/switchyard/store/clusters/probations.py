"""Queries about probation: how attempts ended, and which clusters and nodes are on probation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.jobs.spread_arrays import SpreadArray
from switchyard.store.tables.probation_tables import attempt_evidence, probations
from switchyard.store.tables.schema import READY, jobs

EVIDENCE_READ_MAX = 10_000  # newest rows of a snapshot
PROBATIONS_READ_MAX = 10_000
WAITING_READ_MAX = 1000
# Ended: kept for a while, so that a cluster that fails again soon gets longer pauses. Off: an operator exempted it.
StateName = Literal["on", "ended", "off"]


class EvidenceRow(StoredRow, frozen=True):
    owner_id: str
    cluster_id: str
    subject: str
    node: str
    fails: int
    ok_us: int
    last_us: int
    reason: str


class ProbationRow(StoredRow, frozen=True):
    cluster_id: str
    owner_id: str
    node: str
    subject: str
    state: StateName
    is_confirmed: bool
    reason: str
    since_us: int
    next_us: int
    last_us: int
    passed: int
    level: int
    canaries: str


def evidence_lock(tx: Tx, owner_ids: Collection[str]) -> list[EvidenceRow]:
    """Lock the evidence about these owners, also where there is none yet, and return it."""
    dialect.lock_names(tx, [f"evidence {owner_id}" for owner_id in owner_ids])
    query = sa.select(attempt_evidence).where(attempt_evidence.c.owner_id.in_(sorted(owner_ids)))
    return fetch_all(tx, EvidenceRow, query)


def evidence_put(tx: Tx, rows: Sequence[EvidenceRow]) -> None:
    _put(tx, attempt_evidence, [asdict(row) for row in rows])


def evidence_delete(tx: Tx, rows: Iterable[EvidenceRow]) -> None:
    keys = attempt_evidence.c
    for row in rows:
        same = keys.owner_id == row.owner_id, keys.cluster_id == row.cluster_id, keys.subject == row.subject
        tx.execute(sa.delete(attempt_evidence).where(*same, keys.node == row.node))


def evidence_forget(tx: Tx, *, before_us: int | None = None, cluster_id: str | None = None) -> int:
    """Delete the evidence that is older, or that about a cluster."""
    keys = attempt_evidence.c
    which = keys.cluster_id == cluster_id if before_us is None else keys.last_us < before_us
    return tx.execute(sa.delete(attempt_evidence).where(which)).rowcount


def evidence_forgive(tx: Tx, cluster_id: str, owner_id: str, *, now_us: int) -> None:
    """Count from zero again at a cluster whose probation ended. `owner_id`: empty for the evidence about all."""
    keys = attempt_evidence.c
    which = [keys.cluster_id == cluster_id, keys.fails > 0, *([keys.owner_id == owner_id] if owner_id else [])]
    tx.execute(sa.update(attempt_evidence).where(*which).values(fails=0, ok_us=now_us, last_us=now_us))


def evidence_all(tx: Tx) -> list[EvidenceRow]:
    """List the newest evidence."""
    return fetch_all(
        tx,
        EvidenceRow,
        sa.select(attempt_evidence).order_by(attempt_evidence.c.last_us.desc()).limit(EVIDENCE_READ_MAX),
    )


def probation_all(tx: Tx) -> list[ProbationRow]:
    return fetch_all(
        tx, ProbationRow, sa.select(probations).order_by(probations.c.last_us.desc()).limit(PROBATIONS_READ_MAX)
    )


def probation_lock(tx: Tx, cluster_ids: Collection[str]) -> list[ProbationRow]:
    """Lock the probations of these clusters, also where there is none yet, and return them."""
    dialect.lock_names(tx, [f"probation {cluster_id}" for cluster_id in cluster_ids])
    query = sa.select(probations).where(probations.c.cluster_id.in_(sorted(cluster_ids)))
    keys = probations.c.cluster_id, probations.c.owner_id, probations.c.node
    return fetch_all(tx, ProbationRow, query.order_by(*keys).with_for_update())


def probation_try_lock(tx: Tx, cluster_ids: Collection[str]) -> list[ProbationRow]:
    """Return the probations of these clusters that no other transaction has locked. It never waits.

    A lease takes them after the rows of agents, and a report before these: a wait could be a deadlock.
    """
    query = sa.select(probations).where(probations.c.cluster_id.in_(sorted(cluster_ids)), probations.c.state == "on")
    return fetch_all(tx, ProbationRow, query.with_for_update(skip_locked=True))


def probation_put(tx: Tx, rows: Sequence[ProbationRow]) -> None:
    _put(tx, probations, [asdict(row) for row in rows])


def probation_delete(tx: Tx, rows: Iterable[ProbationRow]) -> None:
    keys = probations.c
    for row in rows:
        same = keys.cluster_id == row.cluster_id, keys.owner_id == row.owner_id, keys.node == row.node
        tx.execute(sa.delete(probations).where(*same))


class AssignedJob(StoredRow, frozen=True):
    """A job that waits at a cluster since before its probation."""

    id: str
    owner_id: str | None


def ready_before(tx: Tx, cluster_id: str, *, before_us: int, limit: int) -> list[AssignedJob]:
    """List jobs that wait at a cluster for their lease, have not begun and were assigned until then."""
    query = sa.select(*columns_of(AssignedJob, jobs)).where(
        jobs.c.cluster_id == cluster_id,
        sa.text(READY),
        jobs.c.assigned_us <= before_us,
        jobs.c.state != "RUNNING",
        jobs.c.spread.is_(None),
    )
    return fetch_all(tx, AssignedJob, query.limit(limit))


def jobs_waiting_at(tx: Tx, cluster_ids: Collection[str], *, owner_id: str, limit: int) -> list[SpreadArray]:
    """List jobs that wait at these clusters for their lease, and arrays that several clusters may lease.

    `owner_id`: empty for all owners. Of very many jobs that wait, only some are looked at.
    """
    is_movable = sa.or_(jobs.c.array.is_(None), jobs.c.spread.is_not(None))
    ready = sa.select(jobs.c.id).where(jobs.c.cluster_id.in_(sorted(cluster_ids)), sa.text(READY))
    query = sa.select(*columns_of(SpreadArray, jobs)).where(jobs.c.id.in_(ready.limit(WAITING_READ_MAX)), is_movable)
    if owner_id:
        query = query.where(jobs.c.owner_id == owner_id)
    return fetch_all(tx, SpreadArray, query.limit(limit))


def _put(tx: Tx, table: sa.Table, rows: Sequence[dict[str, object]]) -> None:
    if not rows:
        return
    statement = dialect.insert_statement(tx, table)
    keys = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    tx.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)
