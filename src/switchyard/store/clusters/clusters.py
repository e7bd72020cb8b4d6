"""Queries about clusters, agents and invites."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Tx
from switchyard.store.engine.frequent_statement import FrequentStatement
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.tables.clusters_tables import agents, clusters, invites
from switchyard.store.tables.schema import READY, jobs

IDS_MAX = 10_000  # SQLite takes 32,766 parameters in a statement, PostgreSQL 65,535

_NOT_DELETED = clusters.c.deleted_us.is_(None)
_AGENT_NOT_DELETED = agents.c.deleted_us.is_(None)


class ClusterRow(StoredRow, frozen=True):
    id: str
    name: str
    is_private: bool
    is_cordoned: bool
    reason: str
    groups: str
    labels: str
    backend: str
    graph: str | None
    state: str
    created_us: int
    deleted_us: int | None
    is_ephemeral: bool = False
    group_invite_id: str | None = None
    namespaces: str = "[]"


class ClusterUpdate(ColumnUpdate, frozen=True, kw_only=True):
    is_private: bool | UnsetType = UNSET
    is_cordoned: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    groups: str | UnsetType = UNSET
    labels: str | UnsetType = UNSET
    namespaces: str | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    graph: str | UnsetType | None = UNSET
    state: str | UnsetType = UNSET
    deleted_us: int | UnsetType = UNSET


class AgentRow(StoredRow, frozen=True):
    id: str
    cluster_id: str
    name: str
    journal: str
    credential_hash: str
    next_hash: str | None
    next_until_us: int | None
    is_rotation_asked: bool
    is_paused: bool
    reason: str
    session: int
    incarnation: str
    backend: str
    version: str
    load: str | None
    created_us: int
    seen_us: int | None
    deleted_us: int | None
    starts: int | None
    writes: int | None
    place: str | None
    rival: str | None
    is_named: bool = False


class AgentUpdate(ColumnUpdate, frozen=True, kw_only=True):
    credential_hash: str | UnsetType = UNSET
    next_hash: str | UnsetType | None = UNSET
    next_until_us: int | UnsetType = UNSET
    is_rotation_asked: bool | UnsetType = UNSET
    is_paused: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    incarnation: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    seen_us: int | UnsetType | None = UNSET
    deleted_us: int | UnsetType = UNSET
    starts: int | UnsetType | None = UNSET
    writes: int | UnsetType | None = UNSET
    place: str | UnsetType = UNSET
    is_named: bool | UnsetType = UNSET
    rival: str | UnsetType | None = UNSET


class AgentSession(StoredRow, frozen=True):
    """The session of an agent, and the process that has it."""

    id: str
    session: int
    is_paused: bool
    incarnation: str
    rival: str | None


class AgentHolder(StoredRow, frozen=True):
    """The process that holds the session of an agent. `is_named`: it names itself in each call."""

    incarnation: str
    is_named: bool


class InviteRow(StoredRow, frozen=True):
    id: str
    cluster_id: str
    token_hash: str
    is_reusable: bool
    expires_us: int
    uses: int
    created_us: int
    revoked_us: int | None
    maker_id: str | None
    parent_id: str | None
    is_for_job: bool = False
    job_id: str | None = None


class InviteUpdate(ColumnUpdate, frozen=True, kw_only=True):
    uses: int | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    revoked_us: int | UnsetType = UNSET


def cluster_all(tx: Tx) -> list[ClusterRow]:
    return fetch_all(tx, ClusterRow, sa.select(clusters).where(_NOT_DELETED).order_by(clusters.c.name))


def cluster_names(tx: Tx) -> set[str]:
    return set(tx.execute(sa.select(clusters.c.name).where(_NOT_DELETED)).scalars())


def cluster_by_name(tx: Tx, name: str) -> ClusterRow | None:
    return fetch_one(tx, ClusterRow, sa.select(clusters).where(clusters.c.name == name, _NOT_DELETED))


def cluster_deleted_private_names(tx: Tx) -> list[str]:
    """Return the names of deleted private clusters. Jobs, events and reasons still contain them."""
    query = sa.select(clusters.c.name).where(clusters.c.deleted_us.is_not(None), clusters.c.is_private)
    return list(tx.execute(query.distinct()).scalars())


def cluster_by_id(tx: Tx, cluster_id: str) -> ClusterRow | None:
    return fetch_one(tx, ClusterRow, sa.select(clusters).where(clusters.c.id == cluster_id, _NOT_DELETED))


def cluster_deleted_name(tx: Tx, cluster_id: str) -> str | None:
    """Return the name of a deleted cluster. None: it is not deleted, or unknown."""
    query = sa.select(clusters.c.name).where(clusters.c.id == cluster_id, clusters.c.deleted_us.is_not(None))
    name: str | None = tx.execute(query).scalar()
    return name


def cluster_lock(tx: Tx, cluster_id: str) -> ClusterRow | None:
    """Return a cluster, locked until the commit."""
    query = sa.select(clusters).where(clusters.c.id == cluster_id, _NOT_DELETED)
    return fetch_one(tx, ClusterRow, query.with_for_update())


def cluster_deleted_with_ready(tx: Tx) -> list[str]:
    """Return the ids of deleted clusters that still have ready jobs."""
    has_ready = sa.text(f"EXISTS (SELECT 1 FROM jobs WHERE jobs.cluster_id = clusters.id AND {READY})")
    return list(tx.execute(sa.select(clusters.c.id).where(clusters.c.deleted_us.is_not(None), has_ready)).scalars())


def cluster_insert(tx: Tx, row: ClusterRow) -> None:
    tx.execute(sa.insert(clusters).values(**asdict(row)))


def cluster_change(tx: Tx, cluster_id: str, change: ClusterUpdate) -> None:
    tx.execute(sa.update(clusters).where(clusters.c.id == cluster_id).values(change.columns()))


def agent_all(tx: Tx) -> list[AgentRow]:
    return fetch_all(tx, AgentRow, sa.select(agents).where(_AGENT_NOT_DELETED).order_by(agents.c.id))


def agent_lock_by_name(tx: Tx, cluster_id: str, name: str) -> AgentRow | None:
    query = sa.select(agents).where(agents.c.cluster_id == cluster_id, agents.c.name == name, _AGENT_NOT_DELETED)
    return fetch_one(tx, AgentRow, query.with_for_update())


def agent_insert(tx: Tx, row: AgentRow) -> None:
    tx.execute(sa.insert(agents).values(**asdict(row)))


def agent_change(tx: Tx, agent_id: str, change: AgentUpdate) -> None:
    tx.execute(sa.update(agents).where(agents.c.id == agent_id).values(change.columns()))


def agent_of(tx: Tx, cluster_id: str) -> list[AgentRow]:
    """Return the agents of a cluster that are not removed."""
    return fetch_all(tx, AgentRow, sa.select(agents).where(agents.c.cluster_id == cluster_id, _AGENT_NOT_DELETED))


def agent_count(tx: Tx, cluster_id: str) -> int:
    query = sa.select(sa.func.count()).select_from(agents).where(agents.c.cluster_id == cluster_id, _AGENT_NOT_DELETED)
    return int(tx.execute(query).scalar_one())


def agent_delete_of(tx: Tx, cluster_id: str, *, at_us: int) -> None:
    delete = sa.update(agents).where(agents.c.cluster_id == cluster_id, _AGENT_NOT_DELETED)
    tx.execute(delete.values(deleted_us=at_us))


def agent_lock(tx: Tx, agent_id: str) -> AgentRow | None:
    """Return an agent that is not removed, locked until the commit."""
    query = sa.select(agents).where(agents.c.id == agent_id, _AGENT_NOT_DELETED)
    return fetch_one(tx, AgentRow, query.with_for_update())


def agent_begin_session(tx: Tx, agent_id: str, change: AgentUpdate, *, at_us: int) -> int:
    """Begin a new session of a locked agent. Polls of older sessions are refused from now on."""
    update = sa.update(agents).where(agents.c.id == agent_id).returning(agents.c.session)
    return int(tx.execute(update.values(session=agents.c.session + 1, seen_us=at_us, **change.columns())).scalar_one())


def agent_end_sessions(tx: Tx, agent_ids: Iterable[str]) -> None:
    """End the sessions of these agents. Each must sync, and so report its attempts, before its next poll."""
    update = sa.update(agents).where(agents.c.id.in_(sorted(agent_ids)))
    tx.execute(update.values(session=agents.c.session + 1))


def agent_cluster_id(tx: Tx, agent_id: str) -> str | None:
    """Return the cluster of an agent that is not removed."""
    query = sa.select(agents.c.cluster_id).where(agents.c.id == agent_id, _AGENT_NOT_DELETED)
    cluster_id: str | None = tx.execute(query).scalar()
    return cluster_id


def agent_holder(tx: Tx, agent_id: str) -> AgentHolder | None:
    """Return the process that holds the session of an agent that is not removed. The row is not locked."""
    query = sa.select(agents.c.incarnation, agents.c.is_named).where(agents.c.id == agent_id, _AGENT_NOT_DELETED)
    return fetch_one(tx, AgentHolder, query)


def agent_settle_rotation(tx: Tx, agent_id: str, hash_: str) -> bool:
    """Make the next credential the only one, if `hash_` is still the next one. Returns whether it was."""
    statement = (
        sa.update(agents)
        .where(agents.c.id == agent_id, agents.c.next_hash == hash_)
        .values(credential_hash=hash_, next_hash=None, next_until_us=None, is_rotation_asked=False)
    )
    return tx.execute(statement).rowcount > 0


# Built once, because every poll runs it: building a statement costs more than running it.
_SESSIONS = FrequentStatement(
    sa.select(*columns_of(AgentSession, agents))
    .where(agents.c.id.in_(sa.bindparam("ids", expanding=True)), _AGENT_NOT_DELETED)
    .order_by(agents.c.id)
    .with_for_update(read=True)
)


def agent_sessions(tx: Tx, agent_ids: list[str]) -> dict[str, AgentSession]:
    """Return the session of each agent, share-locked until the commit. A concurrent sync or pause waits, and the sync
    then sees the leases given here."""
    return {row.id: row for row in _SESSIONS.fetch_all(tx, AgentSession, {"ids": sorted(agent_ids)})}


def agent_set_writes(tx: Tx, writes_by_agent: dict[str, tuple[str, int]]) -> None:
    """Store how many writes each agent's journal has, if the process (`incarnation`) still has the agent's session."""
    is_same = (agents.c.id == sa.bindparam("p_id"), agents.c.incarnation == sa.bindparam("p_incarnation"))
    is_more = sa.or_(agents.c.writes.is_(None), agents.c.writes < sa.bindparam("p_writes"))
    rows = [
        {"p_id": agent_id, "p_incarnation": incarnation, "p_writes": writes}
        for agent_id, (incarnation, writes) in sorted(writes_by_agent.items())
    ]
    if rows:
        tx.execute(sa.update(agents).where(*is_same, is_more).values(writes=sa.bindparam("p_writes")), rows)


def agent_set_seen(tx: Tx, seen: dict[str, tuple[int, str | None]]) -> None:
    """Store when agents were last seen, and their load where they sent one. Times never go backwards."""
    by_time: dict[int, list[str]] = {}
    rows = []
    for key in sorted(seen):
        at_us, load = seen[key]
        if load is None:
            by_time.setdefault(at_us, []).append(key)
        else:
            rows.append({"p_id": key, "at_us": at_us, "p_load": load})
    is_newer = sa.or_(agents.c.seen_us.is_(None), agents.c.seen_us < sa.bindparam("at_us"))
    if rows:
        update = sa.update(agents).where(agents.c.id == sa.bindparam("p_id"), is_newer)
        tx.execute(update.values(seen_us=sa.bindparam("at_us"), load=sa.bindparam("p_load")), rows)
    for at_us, keys in by_time.items():  # agents with a parked poll are seen at the same moment: one statement
        for first in range(0, len(keys), IDS_MAX):
            update = sa.update(agents).where(agents.c.id.in_(keys[first : first + IDS_MAX]), is_newer)
            tx.execute(update.values(seen_us=sa.bindparam("at_us")), {"at_us": at_us})


def agent_last_seen(tx: Tx) -> dict[str, int | None]:
    query = sa.select(agents.c.id, agents.c.seen_us).where(_AGENT_NOT_DELETED)
    return {row.id: row.seen_us for row in tx.execute(query)}


def agent_loads(tx: Tx) -> dict[str, str]:
    """Return the load that each agent last reported of its cluster, as JSON."""
    query = sa.select(agents.c.id, agents.c.load).where(_AGENT_NOT_DELETED, agents.c.load.is_not(None))
    return {row.id: row.load for row in tx.execute(query)}


def invite_insert(tx: Tx, row: InviteRow) -> None:
    tx.execute(sa.insert(invites).values(**asdict(row)))


def invite_lock(tx: Tx, invite_id: str) -> InviteRow | None:
    return fetch_one(tx, InviteRow, sa.select(invites).where(invites.c.id == invite_id).with_for_update())


def invite_peek(tx: Tx, invite_id: str) -> InviteRow | None:
    """Return an invite without locking it."""
    return fetch_one(tx, InviteRow, sa.select(invites).where(invites.c.id == invite_id))


def invite_list(tx: Tx, cluster_id: str, *, after: str, limit: int) -> list[InviteRow]:
    query = sa.select(invites).where(invites.c.cluster_id == cluster_id, invites.c.id > after)
    return fetch_all(tx, InviteRow, query.order_by(invites.c.id).limit(limit))


def invite_usable_count(tx: Tx, cluster_id: str, *, now_us: int) -> int:
    """Count the join tokens of a cluster with which an agent can still join: valid ones, or of a job that is live."""
    is_unused = sa.or_(invites.c.is_reusable, invites.c.uses == 0)
    is_valid = sa.and_(invites.c.expires_us > now_us, is_unused)
    is_of_live_job = sa.and_(jobs.c.id.is_not(None), jobs.c.ended_us.is_(None))
    is_usable = sa.and_(invites.c.revoked_us.is_(None), sa.or_(is_valid, is_of_live_job))
    joined = invites.outerjoin(jobs, jobs.c.id == invites.c.job_id)
    query = sa.select(sa.func.count()).select_from(joined).where(invites.c.cluster_id == cluster_id, is_usable)
    return int(tx.execute(query).scalar_one())


def invite_revoke_made_with(tx: Tx, token_ids: Collection[str], *, at_us: int) -> int:
    """Revoke the join tokens that were made with these user tokens. Returns their number."""
    is_made_with = (invites.c.parent_id.in_(sorted(token_ids)), invites.c.revoked_us.is_(None))
    return tx.execute(sa.update(invites).where(*is_made_with).values(revoked_us=at_us)).rowcount


def invite_change(tx: Tx, invite_id: str, change: InviteUpdate) -> None:
    tx.execute(sa.update(invites).where(invites.c.id == invite_id).values(change.columns()))
