"""Group join tokens: one token lets a bounded number of agents join, each with a cluster of one group.

Only platform administrators make them: the token registers clusters, and its holder chooses their names. The token
opens no cluster that it did not register itself, and adds no agent to a cluster that another agent registered with it.
"""

from __future__ import annotations

import msgspec

from switchyard.errors import Denied, NotFound, Unauthenticated
from switchyard.model.cluster.cluster import ClusterRequest, GroupInvite, GroupInviteRequest, NewGroupInvite
from switchyard.model.cluster.poll import Join
from switchyard.model.rules.access import Role
from switchyard.service.cluster.clusters import register_cluster
from switchyard.service.cluster.served_namespaces import encode_patterns
from switchyard.service.core.agents.credential import lock_parent_token, make_credential, maker_problem, secret_matches
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch
from switchyard.store.clusters import clusters, group_invites


def group_invite_create(context: Context, actor: Actor, group: str, request: GroupInviteRequest) -> NewGroupInvite:
    """Create a join token of a group. The token expires no later than the actor's user token."""
    actor.need_platform(Role.ADMIN)
    invite_id = context.new_id()
    token, hash_ = make_credential("join", invite_id)

    def apply(batch: Batch) -> NewGroupInvite:
        parent = lock_parent_token(batch, actor)
        parent_expiry = [parent.expires_us] if parent is not None and parent.expires_us is not None else []
        row = group_invites.GroupInviteRow(
            id=invite_id,
            group_name=group,
            token_hash=hash_,
            uses_max=request.uses_max,
            uses=0,
            is_private=request.is_private,
            is_ephemeral=request.is_ephemeral,
            expires_us=min([batch.now_us + request.expires_s * 1_000_000, *parent_expiry]),
            created_us=batch.now_us,
            revoked_us=None,
            maker_id=actor.user_id,
            parent_id=parent.id if parent is not None else None,
            namespaces=encode_patterns(request.namespaces),
        )
        group_invites.group_invite_insert(batch.tx, row)
        info = _view(row)
        record_audit(batch, context, actor, "cluster-group.invite", group, after=info)
        return NewGroupInvite(token, info)

    return context.committer.call(apply)


def group_invite_list(context: Context, actor: Actor, group: str, *, after: str, limit: int) -> list[GroupInvite]:
    actor.need_platform(Role.ADMIN)
    with context.database.read() as tx:
        rows = group_invites.group_invite_list(tx, group, after=after, limit=limit)
    return [_view(row) for row in rows]


def group_invite_revoke(context: Context, actor: Actor, group: str, invite_id: str) -> None:
    """Revoke a join token of a group. Agents that joined with it stay."""
    actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> None:
        row = group_invites.group_invite_lock(batch.tx, invite_id)
        if row is None or row.group_name != group:
            raise NotFound(f"The group {group} has no join token {invite_id[:40]}.")
        if row.revoked_us is None:
            revoked = group_invites.GroupInviteUpdate(revoked_us=batch.now_us)
            group_invites.group_invite_change(batch.tx, invite_id, revoked)
        by = actor if row.revoked_us is not None else actor.name  # the first revocation is never refused
        record_audit(batch, context, by, "cluster-group.invite.revoke", group, after={"invite": invite_id})

    context.committer.call(apply)


def lock_group_invite(batch: Batch, parts: tuple[str, str]) -> group_invites.GroupInviteRow | None:
    """Return the group join token with this id and secret, locked; None: it is no such token."""
    row = group_invites.group_invite_lock(batch.tx, parts[0])
    return row if row is not None and secret_matches(parts[1], row.token_hash) else None


def open_cluster(batch: Batch, context: Context, invite: group_invites.GroupInviteRow, request: Join) -> str:
    """Return the id of the cluster that an agent joins with a group join token, and register the cluster if it is new.

    Raises Unauthenticated if the token is not valid any more, and Denied if it is not for this cluster or agent.
    """
    if problem := _problem(batch, context, invite):
        raise Unauthenticated(
            f"The join token {problem}.",
            next_step=f"Ask an administrator to run `yard cluster invite-group {invite.group_name}`.",
        )
    if invite.is_ephemeral != request.is_ephemeral:
        kind = "ephemeral clusters" if invite.is_ephemeral else "clusters that stay"
        step = "Start the agent with --ephemeral." if invite.is_ephemeral else "Start the agent without --ephemeral."
        raise Denied(f"The join token is for {kind}.", next_step=step)
    row = clusters.cluster_by_name(batch.tx, request.cluster)
    if row is None:
        wanted = ClusterRequest(
            request.cluster,
            is_private=invite.is_private,
            groups=[invite.group_name],
            namespaces=msgspec.json.decode(invite.namespaces, type=list[str]),
        )
        by = f"agent:{request.name}"
        return register_cluster(batch, context, by, wanted, is_ephemeral=invite.is_ephemeral, group_invite_id=invite.id)
    # Lock it: its last agent may be leaving, and removes it.
    locked = clusters.cluster_lock(batch.tx, row.id)
    if locked is None or locked.group_invite_id != invite.id:
        raise Denied(
            f"The join token may not open the cluster {request.cluster}: it did not register it.",
            next_step="Choose another name with --cluster.",
        )
    # Every member of the group has the token. A second agent would get the jobs of the first with their environments.
    if any(
        (agent.name, agent.journal) != (request.name, request.journal) for agent in clusters.agent_of(batch.tx, row.id)
    ):
        raise Denied(
            f"The join token adds no agent to the cluster {request.cluster}: another agent registered it.",
            next_step=f"Choose another name with --cluster, or join with `yard cluster invite {request.cluster}`.",
        )
    return str(locked.id)


def count_use(batch: Batch, invite: group_invites.GroupInviteRow) -> None:
    """Count one more agent. Raises Unauthenticated if the token has let in as many as it may."""
    if invite.uses >= invite.uses_max:
        agents = "1 agent" if invite.uses_max == 1 else f"{invite.uses_max} agents"
        raise Unauthenticated(
            f"The join token has let in {agents}, and may let in no more.",
            next_step=f"Ask an administrator to run `yard cluster invite-group {invite.group_name}`.",
        )
    group_invites.group_invite_change(batch.tx, invite.id, group_invites.GroupInviteUpdate(uses=invite.uses + 1))


def _problem(batch: Batch, context: Context, invite: group_invites.GroupInviteRow) -> str:
    """Return why the token is not valid any more; empty: it is valid."""
    if invite.revoked_us is not None:
        return "was revoked"
    if invite.expires_us <= batch.now_us:
        return "has expired"
    return maker_problem(context.snapshots.access, invite.maker_id, None)


def _view(row: group_invites.GroupInviteRow) -> GroupInvite:
    return GroupInvite(
        id=row.id,
        group=row.group_name,
        uses_max=row.uses_max,
        expires_us=row.expires_us,
        uses=row.uses,
        is_private=bool(row.is_private),
        is_ephemeral=bool(row.is_ephemeral),
        is_revoked=row.revoked_us is not None,
        created_us=row.created_us,
        namespaces=msgspec.json.decode(row.namespaces, type=list[str]),
    )
