"""List, pause, resume and remove agents, and rotate an agent's credential.

A rotation has two steps. `rotate_credential` makes a new credential and keeps the old one valid. The first use of the
new credential revokes the old one (`finish_rotation`). One of the two is valid even if an answer or a process is lost.
"""

from __future__ import annotations

from msgspec import structs
from msgspec.structs import replace

from switchyard.errors import NotFound, YardError
from switchyard.model.cluster.cluster import POLLING_BACKEND, Agent, AgentChange
from switchyard.model.cluster.poll import Rotate, Rotated
from switchyard.model.job.rival import Rival
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.cluster.clusters import give_up_outputs, refuse_while_jobs_live
from switchyard.service.core.agents.agent_sessions import read_rival, refuse_foreign_process
from switchyard.service.core.agents.credential import hash_secret, make_credential, secret_matches
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.clusters import clusters

# A new credential that is not used in this time becomes invalid: its answer was lost, perhaps to somebody else.
NEXT_CREDENTIAL_US = 600_000_000


def agent_list(context: Context, actor: Actor, cluster: str | None) -> list[Agent]:
    only_cluster_id = visible_cluster(context, actor, cluster).id if cluster is not None else None
    agents = []
    for entry in context.snapshots.fleet.agents.values():
        member = context.snapshots.world.by_id.get(entry.cluster_id)
        if member is None or not actor.may_cluster(Role.VIEW, member) or only_cluster_id not in (None, member.id):
            continue
        agents.append(agent_seen_by(context, actor, entry, member))
    return agents


def agent_seen_by(context: Context, actor: Actor, entry: AgentEntry, member: Member) -> Agent:
    """Return an agent of a cluster as the actor may see it: only operators see hosts and folders."""
    agent = agent_view(context, entry)
    return agent if actor.may_cluster(Role.OPERATE, member) else structs.replace(agent, place="", rival=None)


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
    """Pause or resume an agent, or ask it to rotate its credential. Needs `operate` on the cluster."""
    entry, member = _visible_agent(context, actor, agent_id)
    actor.need_cluster(Role.OPERATE, member)
    update = clusters.AgentUpdate()
    if change.is_paused is not None:
        update = replace(update, is_paused=change.is_paused, reason=change.reason if change.is_paused else "")
    if change.is_rotation_asked is not None:
        update = replace(update, is_rotation_asked=change.is_rotation_asked)

    def apply(batch: Batch) -> None:
        clusters.agent_change(batch.tx, agent_id, update)
        bump_version(batch, Topic.CLUSTERS)
        batch.clusters.add(member.id)  # wake a parked poll: it may return leases now, or the request to rotate
        before = {"is_paused": entry.is_paused, "is_rotation_asked": entry.is_rotation_asked}
        record_audit(batch, context, actor, _action(change), f"{member.name}/{entry.name}", before=before, after=change)

    if update:
        context.committer.call(apply)
    return agent_view(context, context.snapshots.fleet.agents[agent_id])


def _action(change: AgentChange) -> str:
    if change.is_paused is None:
        return "agent.ask-rotation"
    return "agent.pause" if change.is_paused else "agent.resume"


def agent_remove(context: Context, actor: Actor, agent_id: str, *, abandon: bool = False) -> int:
    """Remove an agent. Returns the number of attempts whose output files are given up."""
    entry, member = _visible_agent(context, actor, agent_id)
    actor.need_cluster(Role.ADMIN, member)

    def apply(batch: Batch) -> int:
        refuse_while_jobs_live(batch, [agent_id], f"agent {entry.name}", abandon)
        # Nobody else sends what the last agent of a cluster leaves.
        senders = [agent_id] if clusters.agent_count(batch.tx, member.id) > 1 else None
        unsent = give_up_outputs(batch, member.id, senders, f"agent {entry.name}", abandon)
        clusters.agent_change(batch.tx, agent_id, clusters.AgentUpdate(deleted_us=batch.now_us))
        bump_version(batch, Topic.CLUSTERS)
        batch.clusters.add(member.id)  # wake the agent's parked poll, which now answers that the agent is gone
        record_audit(batch, context, actor.name, "agent.remove", f"{member.name}/{entry.name}")
        return unsent

    return context.committer.call(apply)


def _visible_agent(context: Context, actor: Actor, agent_id: str) -> tuple[AgentEntry, Member]:
    entry = context.snapshots.fleet.agents.get(agent_id)
    member = context.snapshots.world.by_id.get(entry.cluster_id) if entry else None
    if entry is None or member is None or not actor.may_cluster(Role.VIEW, member):
        raise NotFound(f"There is no agent {agent_id[:40]}.", next_step="`yard agent ls` lists the agents.")
    return entry, member


def rotate_credential(context: Context, entry: AgentEntry, request: Rotate) -> Rotated:
    """Return a new credential to an agent. A repeated request replaces the previous unused credential.

    Only the process that holds the agent's session gets one. Otherwise a stolen credential could replace the agent's.
    """
    credential, hash_ = make_credential("agent", entry.id)

    def apply(batch: Batch) -> YardError | None:
        if entry.backend != POLLING_BACKEND:
            refusal = refuse_foreign_process(batch, entry.id, _cluster_name(context, entry), request.incarnation)
            if refusal is not None:
                return refusal
        update = clusters.AgentUpdate(next_hash=hash_, next_until_us=batch.now_us + NEXT_CREDENTIAL_US)
        clusters.agent_change(batch.tx, entry.id, update)
        bump_version(batch, Topic.CLUSTERS)
        return None

    if (refusal := context.committer.call(apply)) is not None:
        raise refusal
    return Rotated(credential)


def require_place(context: Context, entry: AgentEntry, incarnation: str) -> None:
    """Refuse a process that does not hold the agent's session."""

    def apply(batch: Batch) -> YardError | None:
        return refuse_foreign_process(batch, entry.id, _cluster_name(context, entry), incarnation)

    if (refusal := context.committer.call(apply)) is not None:
        raise refusal


def is_next_credential(entry: AgentEntry, secret: str, now_us: int) -> bool:
    """Return whether the secret belongs to the new credential of an unfinished rotation that has not timed out."""
    is_open = entry.next_hash is not None and entry.next_until_us is not None and now_us < entry.next_until_us
    return is_open and entry.next_hash is not None and secret_matches(secret, entry.next_hash)


def finish_rotation(context: Context, entry: AgentEntry, secret: str) -> None:
    """Revoke the old credential, because the new one was just used for the first time."""
    hash_ = hash_secret(secret)

    def apply(batch: Batch) -> None:
        if clusters.agent_settle_rotation(batch.tx, entry.id, hash_):
            bump_version(batch, Topic.CLUSTERS)
            record_audit(batch, context, f"agent:{entry.name}", "agent.rotate", entry.id)

    context.committer.call(apply)
