"""Queries about clusters, agents and invites."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from switchyard.store.database import Tx
from switchyard.store.schema import READY, agents, clusters, invites

Row = sa.Row[*tuple[Any, ...]]

IDS_MAX = 10_000  # ids in one statement: SQLite takes 32,766 parameters, PostgreSQL 65,535

_NOT_DELETED = clusters.c.deleted_us.is_(None)


def cluster_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(clusters).where(_NOT_DELETED).order_by(clusters.c.name)))


def cluster_names(tx: Tx) -> set[str]:
    return set(tx.execute(sa.select(clusters.c.name).where(_NOT_DELETED)).scalars())


def cluster_by_name(tx: Tx, name: str) -> Row | None:
    return tx.execute(sa.select(clusters).where(clusters.c.name == name, _NOT_DELETED)).one_or_none()


def cluster_deleted_private_names(tx: Tx) -> list[str]:
    """The names of private clusters that were deleted: jobs, events and reasons still have them."""
    query = sa.select(clusters.c.name).where(clusters.c.deleted_us.is_not(None), clusters.c.is_private)
    return list(tx.execute(query.distinct()).scalars())


def cluster_by_id(tx: Tx, cluster_id: str) -> Row | None:
    return tx.execute(sa.select(clusters).where(clusters.c.id == cluster_id, _NOT_DELETED)).one_or_none()


def cluster_lock(tx: Tx, cluster_id: str) -> Row | None:
    """The cluster, if there is such a one; until the commit nobody else changes it."""
    query = sa.select(clusters).where(clusters.c.id == cluster_id, _NOT_DELETED).with_for_update()
    return tx.execute(query).one_or_none()


def cluster_deleted_with_ready(tx: Tx) -> list[str]:
    """Registrations that ended while jobs were waiting there."""
    waiting = sa.text(f"EXISTS (SELECT 1 FROM jobs WHERE jobs.cluster_id = clusters.id AND {READY})")
    return list(tx.execute(sa.select(clusters.c.id).where(clusters.c.deleted_us.is_not(None), waiting)).scalars())


def cluster_insert(tx: Tx, row: dict[str, Any]) -> None:
    tx.execute(sa.insert(clusters).values(**row))


def cluster_change(tx: Tx, cluster_id: str, change: dict[str, Any]) -> None:
    tx.execute(sa.update(clusters).where(clusters.c.id == cluster_id).values(**change))


def agent_all(tx: Tx) -> list[Row]:
    return list(tx.execute(sa.select(agents).where(agents.c.deleted_us.is_(None)).order_by(agents.c.id)))


def agent_lock_by_name(tx: Tx, cluster_id: str, name: str) -> Row | None:
    query = sa.select(agents).where(
        agents.c.cluster_id == cluster_id, agents.c.name == name, agents.c.deleted_us.is_(None)
    )
    return tx.execute(query.with_for_update()).one_or_none()


def agent_insert(tx: Tx, row: dict[str, Any]) -> None:
    tx.execute(sa.insert(agents).values(**row))


def agent_change(tx: Tx, agent_id: str, change: dict[str, Any]) -> None:
    tx.execute(sa.update(agents).where(agents.c.id == agent_id).values(**change))


def agent_count(tx: Tx, cluster_id: str) -> int:
    mine = (agents.c.cluster_id == cluster_id, agents.c.deleted_us.is_(None))
    return int(tx.execute(sa.select(sa.func.count()).select_from(agents).where(*mine)).scalar_one())


def agent_delete_of(tx: Tx, cluster_id: str, *, at_us: int) -> None:
    gone = sa.update(agents).where(agents.c.cluster_id == cluster_id, agents.c.deleted_us.is_(None))
    tx.execute(gone.values(deleted_us=at_us))


def agent_lock(tx: Tx, agent_id: str) -> Row | None:
    """An agent that is not removed; until the commit nobody else changes it."""
    query = sa.select(agents).where(agents.c.id == agent_id, agents.c.deleted_us.is_(None))
    return tx.execute(query.with_for_update()).one_or_none()


def agent_begin_session(tx: Tx, agent_id: str, columns: dict[str, Any], *, at_us: int) -> int:
    """Begin a new session of an agent that is locked: leases asked for under an older one are refused from here on."""
    begun = sa.update(agents).where(agents.c.id == agent_id).returning(agents.c.session)
    return int(tx.execute(begun.values(session=agents.c.session + 1, seen_us=at_us, **columns)).scalar_one())


def agent_end_sessions(tx: Tx, agent_ids: Iterable[str]) -> None:
    """What these agents ask next is refused until they have said what they hold."""
    ended = sa.update(agents).where(agents.c.id.in_(sorted(agent_ids)))
    tx.execute(ended.values(session=agents.c.session + 1))


def agent_cluster_id(tx: Tx, agent_id: str) -> str | None:
    """The cluster of an agent that is not removed."""
    query = sa.select(agents.c.cluster_id).where(agents.c.id == agent_id, agents.c.deleted_us.is_(None))
    found: str | None = tx.execute(query).scalar()
    return found


def agent_settle_rotation(tx: Tx, agent_id: str, hash_: str) -> bool:
    """The next credential becomes the only one, if it is still this one."""
    statement = (
        sa.update(agents)
        .where(agents.c.id == agent_id, agents.c.next_hash == hash_)
        .values(credential_hash=hash_, next_hash=None, next_until_us=None, is_rotation_asked=False)
    )
    return tx.execute(statement).rowcount > 0


# Built once, as each that is asked with every poll: making a statement anew costs more than running it.
_SESSIONS = (
    sa.select(agents.c.id, agents.c.session, agents.c.is_paused, agents.c.incarnation, agents.c.rival)
    .where(agents.c.id.in_(sa.bindparam("ids", expanding=True)), agents.c.deleted_us.is_(None))
    .order_by(agents.c.id)
    .with_for_update(read=True)
)


def agent_sessions(tx: Tx, agent_ids: list[str]) -> dict[str, Row]:
    """The session of each, whose it is, and whether it is paused, held until the commit: a sync or a pause elsewhere
    waits, and a sync then sees the leases given here."""
    return {row.id: row for row in tx.execute(_SESSIONS, {"ids": sorted(agent_ids)})}


def agent_set_writes(tx: Tx, told: dict[str, tuple[str, int]]) -> None:
    """Flush how many writes each agent's journal has, as the process said that has the agent's place."""
    mine = (agents.c.id == sa.bindparam("the_id"), agents.c.incarnation == sa.bindparam("the_incarnation"))
    more = sa.or_(agents.c.writes.is_(None), agents.c.writes < sa.bindparam("the_writes"))
    rows = [{"the_id": key, "the_incarnation": told[key][0], "the_writes": told[key][1]} for key in sorted(told)]
    if rows:
        tx.execute(sa.update(agents).where(*mine, more).values(writes=sa.bindparam("the_writes")), rows)


def agent_set_seen(tx: Tx, seen: dict[str, tuple[int, str | None]]) -> None:
    """Flush when agents were last seen, and how they said they were; never backwards."""
    by_time: dict[int, list[str]] = {}
    rows = []
    for key in sorted(seen):
        at_us, load = seen[key]
        if load is None:
            by_time.setdefault(at_us, []).append(key)
        else:
            rows.append({"the_id": key, "at_us": at_us, "the_load": load})
    newer = sa.or_(agents.c.seen_us.is_(None), agents.c.seen_us < sa.bindparam("at_us"))
    if rows:
        one = sa.update(agents).where(agents.c.id == sa.bindparam("the_id"), newer)
        tx.execute(one.values(seen_us=sa.bindparam("at_us"), load=sa.bindparam("the_load")), rows)
    for at_us, keys in by_time.items():  # all that are parked are seen at the same moment: one statement
        for first in range(0, len(keys), IDS_MAX):
            some = sa.update(agents).where(agents.c.id.in_(keys[first : first + IDS_MAX]), newer)
            tx.execute(some.values(seen_us=sa.bindparam("at_us")), {"at_us": at_us})


def agent_last_seen(tx: Tx) -> dict[str, int | None]:
    query = sa.select(agents.c.id, agents.c.seen_us).where(agents.c.deleted_us.is_(None))
    return {row.id: row.seen_us for row in tx.execute(query)}


def agent_loads(tx: Tx) -> dict[str, str]:
    """How each agent last said its cluster was, as JSON."""
    query = sa.select(agents.c.id, agents.c.load).where(agents.c.deleted_us.is_(None), agents.c.load.is_not(None))
    return {row.id: row.load for row in tx.execute(query)}


def invite_insert(tx: Tx, row: dict[str, Any]) -> None:
    tx.execute(sa.insert(invites).values(**row))


def invite_lock(tx: Tx, invite_id: str) -> Row | None:
    return tx.execute(sa.select(invites).where(invites.c.id == invite_id).with_for_update()).one_or_none()


def invite_peek(tx: Tx, invite_id: str) -> Row | None:
    """Without a lock, for a first look."""
    return tx.execute(sa.select(invites).where(invites.c.id == invite_id)).one_or_none()


def invite_list(tx: Tx, cluster_id: str, *, after: str, limit: int) -> list[Row]:
    query = sa.select(invites).where(invites.c.cluster_id == cluster_id, invites.c.id > after)
    return list(tx.execute(query.order_by(invites.c.id).limit(limit)))


def invite_revoke_made_with(tx: Tx, token_ids: Collection[str], *, at_us: int) -> int:
    """Revoke the join tokens that were made with these user tokens; how many."""
    made = (invites.c.parent_id.in_(sorted(token_ids)), invites.c.revoked_us.is_(None))
    return tx.execute(sa.update(invites).where(*made).values(revoked_us=at_us)).rowcount


def invite_change(tx: Tx, invite_id: str, change: dict[str, Any]) -> None:
    tx.execute(sa.update(invites).where(invites.c.id == invite_id).values(**change))
