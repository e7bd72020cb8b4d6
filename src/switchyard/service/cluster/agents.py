"""Agents as operators look after them: list, pause, resume, remove; and the rotation of an agent's credential.

A rotation has two steps. `rotate` makes a new credential and keeps the old one; the first use of the new one ends the
old (`settle_rotation`). So whatever is lost in between, an answer, the agent, the server, one of the two holds.
"""

from __future__ import annotations

from msgspec import structs

from switchyard.errors import NotFound, YardError
from switchyard.model.access import Role
from switchyard.model.cluster import POLLING_BACKEND, Agent, AgentChange
from switchyard.model.poll import Rotate, Rotated
from switchyard.model.rival import Rival
from switchyard.route.world import Member
from switchyard.service.cluster.clusters import refuse_while_jobs_live, visible_cluster
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.credential import hash_secret, make_credential, secret_matches
from switchyard.service.fleet import AgentEntry
from switchyard.service.rights import Actor
from switchyard.service.run.agent_sessions import read_rival, refuse_foreign_process
from switchyard.store import clusters

# A new credential that was not used by then is forgotten: its answer got lost, and who knows where it went.
NEXT_CREDENTIAL_US = 600_000_000


def agent_list(context: Context, actor: Actor, cluster: str | None) -> list[Agent]:
    only = visible_cluster(context, actor, cluster).id if cluster is not None else None
    found = []
    for entry in context.snapshots.fleet.agents.values():
        member = context.snapshots.world.by_id.get(entry.cluster_id)
        if member is None or (only is not None and member.id != only) or not actor.may_cluster(Role.VIEW, member):
            continue
        agent = agent_view(context, entry)
        if not actor.may_cluster(Role.OPERATE, member):
            agent = structs.replace(agent, place="", rival=None)  # hosts and folders are the operators' business
        found.append(agent)
    return found


def agent_view(context: Context, entry: AgentEntry) -> Agent:
    return Agent(
        id=entry.id,
        name=entry.name,
        cluster=_cluster_name(context, entry),
        backend=entry.backend,
        version=entry.version,
        is_live=context.snapshots.is_live(entry.id),
        is_paused=entry.is_paused,
        reason=entry.reason,
        is_rotation_asked=entry.is_rotation_asked,
        created_us=entry.created_us,
        seen_us=context.snapshots.seen.get(entry.id),
        place=entry.place,
        rival=_refused_rival(entry),
    )


def _cluster_name(context: Context, entry: AgentEntry) -> str:
    row = context.snapshots.fleet.rows.get(entry.cluster_id)
    return row.name if row else ""


def _refused_rival(entry: AgentEntry) -> Rival | None:
    rival = read_rival(entry.rival)
    return rival if rival is not None and rival.refused_us is not None else None


def agent_change(context: Context, actor: Actor, agent_id: str, change: AgentChange) -> Agent:
    """Pause, resume, or ask for a new credential: an operator's work."""
    entry, member = _visible(context, actor, agent_id)
    actor.need_cluster(Role.OPERATE, member)
    columns: dict[str, object] = {}
    if change.is_paused is not None:
        columns |= {"is_paused": change.is_paused, "reason": change.reason if change.is_paused else ""}
    if change.is_rotation_asked is not None:
        columns["is_rotation_asked"] = change.is_rotation_asked

    def apply(batch: Batch) -> None:
        clusters.agent_change(batch.tx, agent_id, columns)
        bump_version(batch, "clusters")
        batch.clusters.add(member.id)  # a parked poll looks again: there may be leases now, or the word to rotate
        before = {"is_paused": entry.is_paused, "is_rotation_asked": entry.is_rotation_asked}
        record_audit(
            batch, context, actor.name, _action(change), f"{member.name}/{entry.name}", before=before, after=change
        )

    if columns:
        context.committer.call(apply)
    return agent_view(context, context.snapshots.fleet.agents[agent_id])


def _action(change: AgentChange) -> str:
    if change.is_paused is None:
        return "agent.ask-rotation"
    return "agent.pause" if change.is_paused else "agent.resume"


def agent_remove(context: Context, actor: Actor, agent_id: str, *, abandon: bool = False) -> None:
    entry, member = _visible(context, actor, agent_id)
    actor.need_cluster(Role.ADMIN, member)

    def apply(batch: Batch) -> None:
        refuse_while_jobs_live(batch, [agent_id], f"agent {entry.name}", abandon)
        clusters.agent_change(batch.tx, agent_id, {"deleted_us": batch.now_us})
        bump_version(batch, "clusters")
        batch.clusters.add(member.id)  # its parked poll comes back now, and is told
        record_audit(batch, context, actor.name, "agent.remove", f"{member.name}/{entry.name}")

    context.committer.call(apply)


def _visible(context: Context, actor: Actor, agent_id: str) -> tuple[AgentEntry, Member]:
    entry = context.snapshots.fleet.agents.get(agent_id)
    member = context.snapshots.world.by_id.get(entry.cluster_id) if entry else None
    if entry is None or member is None or not actor.may_cluster(Role.VIEW, member):
        raise NotFound(f"There is no agent {agent_id[:40]}.", next_step="`yard agent ls` lists the agents.")
    return entry, member


def rotate_credential(context: Context, entry: AgentEntry, request: Rotate) -> Rotated:
    """A new credential for an agent that showed its own. Asked again, the one before is forgotten.

    Only the process that has the agent's place gets one: a copy of the credential would end the agent's own.
    """
    credential, hash_ = make_credential("agent", entry.id)

    def apply(batch: Batch) -> YardError | None:
        if entry.backend != POLLING_BACKEND:
            refusal = refuse_foreign_process(batch, entry.id, _cluster_name(context, entry), request.incarnation)
            if refusal is not None:
                return refusal
        clusters.agent_change(
            batch.tx, entry.id, {"next_hash": hash_, "next_until_us": batch.now_us + NEXT_CREDENTIAL_US}
        )
        bump_version(batch, "clusters")
        return None

    if (refusal := context.committer.call(apply)) is not None:
        raise refusal
    return Rotated(credential)


def require_place(context: Context, entry: AgentEntry, incarnation: str) -> None:
    """Refuse a process that has not begun the agent's session."""

    def apply(batch: Batch) -> YardError | None:
        return refuse_foreign_process(batch, entry.id, _cluster_name(context, entry), incarnation)

    if (refusal := context.committer.call(apply)) is not None:
        raise refusal


def is_next_credential(entry: AgentEntry, secret: str, now_us: int) -> bool:
    """Whether this is the credential that a rotation has made, and its time is not over."""
    is_open = entry.next_hash is not None and entry.next_until_us is not None and now_us < entry.next_until_us
    return is_open and entry.next_hash is not None and secret_matches(secret, entry.next_hash)


def finish_rotation(context: Context, entry: AgentEntry, secret: str) -> None:
    """The new credential is used for the first time: the old one ends."""
    hash_ = hash_secret(secret)

    def apply(batch: Batch) -> None:
        settled = clusters.agent_settle_rotation(batch.tx, entry.id, hash_)
        if settled:
            bump_version(batch, "clusters")
            record_audit(batch, context, f"agent:{entry.name}", "agent.rotate", entry.id)

    context.committer.call(apply)
