"""Register, change and delete clusters, and invite agents. A cluster is identified by its id: names can be reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from switchyard.errors import Conflict, Denied, NameTaken, NoSuchCluster, NotFound
from switchyard.model.cluster.cluster import (
    Cluster,
    ClusterChange,
    ClusterRequest,
    Health,
    Invite,
    InviteRequest,
    NewInvite,
)
from switchyard.model.cluster.selection import Scalar, StateValue
from switchyard.model.rules.access import ROLE_RANK, GranteeKind, GrantTarget, Role
from switchyard.route.member import Member
from switchyard.service.cluster.served_namespaces import encode_patterns, need_right_to_serve, serve_invited
from switchyard.service.core.agents.cluster_state import set_manual_values, state_values
from switchyard.service.core.agents.credential import lock_parent_token, make_credential
from switchyard.service.core.agents.fleet import ClusterEntry
from switchyard.service.core.agents.probation_views import probation_views
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.reserve.quotes import quote_record_of
from switchyard.store.access import access, submit_tokens
from switchyard.store.clusters import clusters, graphs
from switchyard.store.files import file_outputs
from switchyard.store.jobs import leases
from switchyard.store.rules import namespace_resources

CONFIG_FILE_ACTOR = "config file"  # actor in the audit log for clusters named in the server's config file
DISABLED_REASON = "the server's file does not enable it"
RESERVED_CLUSTER_NAMES = ("fit",)  # `/v1/clusters/fit` is an endpoint


def cluster_list(context: Context, actor: Actor) -> list[Cluster]:
    return cluster_views(context, visible_members(context, actor), actor)


def visible_members(context: Context, actor: Actor) -> list[Member]:
    """Return the clusters that the actor may view, as the router knows them: cheap, also for 10,000 clusters."""
    members = context.snapshots.world.members
    if actor.rights.platform >= ROLE_RANK[Role.VIEW]:
        return list(members)
    return [member for member in members if actor.may_cluster(Role.VIEW, member)]


def cluster_views(context: Context, members: Iterable[Member], reader: Actor) -> list[Cluster]:
    """Return these clusters as the API shows them to a reader in lists."""
    rows = context.snapshots.fleet.rows
    return [_view(context, member, rows[member.id], [], reader) for member in members if member.id in rows]


def cluster_view(context: Context, member: Member | None, reader: Actor | None = None) -> Cluster:
    """Return a cluster as the API shows it.

    The cluster may be missing from one of the two snapshots, because they do not change at the same time.
    """
    row = context.snapshots.fleet.rows.get(member.id) if member else None
    if member is None or row is None:
        raise NoSuchCluster("The cluster was deleted a moment ago.")
    stale_after_us = context.selections.stale_after_us
    state = state_values(context.snapshots, member.id, now_us=context.now_us(), stale_after_us=stale_after_us)
    return msgspec.structs.replace(
        _view(context, member, row, state, reader), quotes=quote_record_of(context, member.id)
    )


def _view(
    context: Context, member: Member, row: ClusterEntry, state: list[StateValue], reader: Actor | None
) -> Cluster:
    agents = context.snapshots.fleet.by_cluster.get(member.id, ())
    seen_times_us = [context.snapshots.seen[agent] for agent in agents if agent in context.snapshots.seen]
    is_open = context.snapshots.access.is_open(member)
    return Cluster(
        id=member.id,
        name=member.name,
        health=member.health,
        reason=member.reason,
        is_private=member.is_private,
        is_ephemeral=row.is_ephemeral,
        is_by_token=not member.is_private and not is_open,
        groups=list(member.groups),
        labels=row.labels,
        backend=row.backend,
        namespaces=list(row.namespaces),
        totals=member.graph.totals if member.graph else {},
        load=context.snapshots.load_of(member.id),
        state=state,
        probations=probation_views(context, member, reader),
        is_probation_off=member.id in context.snapshots.probation.exempt,
        created_us=row.created_us,
        seen_us=max(seen_times_us, default=None),
    )


def cluster_create(context: Context, actor: Actor, request: ClusterRequest) -> Cluster:
    actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> str:
        if clusters.cluster_by_name(batch.tx, request.name) is not None:
            raise NameTaken(f"There is a cluster {request.name} already.")
        return register_cluster(batch, context, actor.name, request)

    cluster_id = context.committer.call(apply)
    return cluster_view(context, context.snapshots.world.by_id.get(cluster_id))


def register_cluster(
    batch: Batch,
    context: Context,
    actor: str,
    request: ClusterRequest,
    *,
    is_ephemeral: bool = False,
    group_invite_id: str | None = None,
) -> str:
    """Store a new cluster and return its id. Everyone may submit to it unless it is private."""
    if request.name in RESERVED_CLUSTER_NAMES:
        raise NameTaken(f"No cluster can be called {request.name}: it is a word of the API.")
    cluster_id = context.new_id()
    row = clusters.ClusterRow(
        id=cluster_id,
        name=request.name,
        is_private=request.is_private,
        is_cordoned=False,
        reason="",
        groups=msgspec.json.encode(sorted(set(request.groups))).decode(),
        labels=msgspec.json.encode(request.labels, order="sorted").decode(),
        backend="",
        graph=None,
        state="{}",
        created_us=batch.now_us,
        deleted_us=None,
        is_ephemeral=is_ephemeral,
        group_invite_id=group_invite_id,
        namespaces=encode_patterns(request.namespaces),
    )
    clusters.cluster_insert(batch.tx, row)
    if not request.is_private:
        _grant_everyone(batch, context, cluster_id, Role.SUBMIT)
    bump_version(batch, Topic.CLUSTERS)
    record_audit(batch, context, actor, "cluster.create", request.name, after=request)
    return cluster_id


def register_configured_cluster(
    batch: Batch, context: Context, name: str, *, is_enabled: bool, was_enabled: bool | None
) -> None:
    """Register a cluster named in the server's config file. It is down until an agent joins, and cordoned if disabled.

    `is_enabled` counts only when it changed in the file. A cordon set or removed at run time stays otherwise.
    """
    row = clusters.cluster_by_name(batch.tx, name)
    cluster_id = row.id if row else register_cluster(batch, context, CONFIG_FILE_ACTOR, ClusterRequest(name))
    if row is not None and is_enabled == was_enabled:
        return
    if is_enabled and (row is None or row.reason != DISABLED_REASON):
        return
    cordon = clusters.ClusterUpdate(is_cordoned=not is_enabled, reason="" if is_enabled else DISABLED_REASON)
    clusters.cluster_change(batch.tx, cluster_id, cordon)
    bump_version(batch, Topic.CLUSTERS)
    batch.clusters.add(cluster_id)
    record_audit(batch, context, CONFIG_FILE_ACTOR, "cluster.change", name, after={"is_cordoned": not is_enabled})


def restrict_to_submit_tokens(batch: Batch, context: Context, cluster_id: str) -> None:
    """Let everyone view the cluster, but submit only with its submit token, until an administrator shares it."""
    access.grant_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=cluster_id, everyone=True)
    _grant_everyone(batch, context, cluster_id, Role.VIEW)


def _grant_everyone(batch: Batch, context: Context, cluster_id: str, role: Role) -> None:
    grant = access.GrantRow(
        id=context.new_id(),
        role=role.value,
        to_kind=GranteeKind.EVERYONE.value,
        subject=GranteeKind.EVERYONE.value,
        on_kind=GrantTarget.CLUSTER.value,
        object=cluster_id,
        created_us=batch.now_us,
    )
    access.grant_insert(batch.tx, grant)
    bump_version(batch, Topic.ACCESS)


def cluster_change(context: Context, actor: Actor, name: str, change: ClusterChange) -> Cluster:
    """Change a cluster. Cordon and state need `operate` on it, namespaces the platform, all other changes `admin`."""
    member = visible_cluster(context, actor, name)
    needs_admin = change.is_private is not None or change.groups is not None or change.labels is not None
    actor.need_cluster(Role.ADMIN if needs_admin else Role.OPERATE, member)
    need_right_to_serve(actor, change.namespaces)
    if change.groups is not None:
        _refuse_group_of_tokens(context, actor, set(change.groups) - set(member.groups))
    wanted = clusters.ClusterUpdate()
    if change.namespaces is not None:
        wanted = replace(wanted, namespaces=encode_patterns(change.namespaces))
    if change.is_cordoned is not None:
        # A second cordon without a reason keeps the first reason.
        old_reason = member.reason if member.health is Health.CORDONED else ""
        reason = (change.reason or old_reason) if change.is_cordoned else ""
        wanted = replace(wanted, is_cordoned=change.is_cordoned, reason=reason)
    if change.is_private is not None:
        wanted = replace(wanted, is_private=change.is_private)
    if change.groups is not None:
        wanted = replace(wanted, groups=msgspec.json.encode(sorted(set(change.groups))).decode())
    if change.labels is not None:
        wanted = replace(wanted, labels=msgspec.json.encode(change.labels, order="sorted").decode())

    def apply(batch: Batch) -> None:
        update = wanted
        if change.state:
            row = clusters.cluster_lock(batch.tx, member.id)
            state = set_manual_values(row.state, change.state, at_us=batch.now_us, by=actor.name) if row else "{}"
            update = replace(update, state=state)
        if not update:
            return
        before = cluster_view(context, member)
        clusters.cluster_change(batch.tx, member.id, update)
        if change.is_private is not None:  # even if unchanged: false also shares a cluster restricted to submit tokens
            access.grant_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=member.id, everyone=True)
            bump_version(batch, Topic.ACCESS)
            if not change.is_private:
                _grant_everyone(batch, context, member.id, Role.SUBMIT)
        bump_version(batch, Topic.CLUSTERS)
        batch.clusters.add(member.id)  # wake parked polls: queued jobs may be leased now
        record_audit(batch, context, actor, "cluster.change", name, before=_audit_summary(before), after=change)

    context.committer.call(apply)
    return cluster_view(context, context.snapshots.world.by_id.get(member.id))


def _refuse_group_of_tokens(context: Context, actor: Actor, added: set[str]) -> None:
    """Refuse groups whose submit tokens would become valid at the cluster: such a token may act for another user.

    Only a platform administrator makes tokens of a group, so only they decide where these are valid.
    """
    entries = context.snapshots.fleet.submit_tokens.values()
    groups = {entry.object for entry in entries if entry.on is GrantTarget.CLUSTER_GROUP} & added
    if groups and not actor.is_platform_admin:
        raise Denied(
            f"The group {min(groups)} has submit tokens, which would be valid at this cluster, too.",
            next_step="Ask a platform administrator to put the cluster into the group.",
        )


def cluster_delete(context: Context, actor: Actor, name: str, *, abandon: bool = False) -> int:
    """Delete a cluster with its agents and grants. A later cluster of the same name inherits no jobs.

    Returns the number of attempts whose output files its agents had not sent yet.
    """
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.ADMIN, member)
    return end_registration(context, member, by=actor.name, abandon=abandon)


def end_registration(context: Context, member: Member, *, by: str, abandon: bool) -> int:
    """Delete a cluster's registration. The caller checks the rights."""

    def apply(batch: Batch) -> int:
        return remove_registration(batch, context, member, by=by, abandon_jobs=abandon, abandon_outputs=abandon)

    return context.committer.call(apply)


def remove_registration(
    batch: Batch, context: Context, member: Member, *, by: str, abandon_jobs: bool, abandon_outputs: bool
) -> int:
    """Delete a cluster with its agents and grants. Returns the number of attempts whose files are given up."""
    agent_ids = [agent.id for agent in clusters.agent_of(batch.tx, member.id)]
    refuse_while_jobs_live(batch, agent_ids, f"cluster {member.name}", abandon_jobs)
    unsent = give_up_outputs(batch, member.id, None, f"cluster {member.name}", abandon_outputs)
    clusters.cluster_change(batch.tx, member.id, clusters.ClusterUpdate(deleted_us=batch.now_us, graph=None))
    graphs.source_delete_of(batch.tx, member.id)
    namespace_resources.report_delete_of(batch.tx, member.id)
    clusters.agent_delete_of(batch.tx, member.id, at_us=batch.now_us)
    access.grant_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=member.id)
    submit_tokens.submit_token_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=member.id)
    submit_tokens.consent_delete_of(batch.tx, member.id)
    bump_version(batch, Topic.CLUSTERS)
    bump_version(batch, Topic.ACCESS)
    batch.clusters.add(member.id)  # wake parked polls, which now answer that the cluster is gone
    before = _audit_summary(cluster_view(context, member))
    record_audit(batch, context, by, "cluster.delete", member.name, before=before)
    return unsent


def set_polled_state(context: Context, cluster_id: str, state: Mapping[str, Scalar | None], *, by: str) -> None:
    """Store the state that a polling cluster reports. A value is valid until the cluster reports another one."""

    def apply(batch: Batch) -> None:
        row = clusters.cluster_lock(batch.tx, cluster_id)
        if row is not None:
            encoded = set_manual_values(row.state, state, at_us=batch.now_us, by=by)
            clusters.cluster_change(batch.tx, cluster_id, clusters.ClusterUpdate(state=encoded))
            bump_version(batch, Topic.CLUSTERS)

    context.committer.call(apply)


def refuse_while_jobs_live(batch: Batch, agent_ids: Sequence[str], what: str, abandon: bool) -> None:
    """Refuse to remove agents with live jobs unless `abandon`: jobs would end as FAILED but their processes run on."""
    live_count = 0 if abandon else leases.leased_count(batch.tx, list(agent_ids))
    if live_count:
        raise Conflict(
            f"The {what} has {live_count} job{'s that have' if live_count > 1 else ' that has'} not ended.",
            next_step="Cordon it and wait, or cancel them; to give them up (they end as FAILED, their processes are "
            "left alone): `--abandon`, or `abandon=true`.",
        )


def give_up_outputs(batch: Batch, cluster_id: str, agent_ids: Sequence[str] | None, what: str, abandon: bool) -> int:
    """Refuse to remove agents that have not sent all output files, unless `abandon`: these files are then given up.

    `agent_ids`: None is all agents of the cluster. Returns the number of attempts whose files are given up.
    """
    unsent = file_outputs.unsent_count(batch.tx, cluster_id, agent_ids, now_us=batch.now_us)
    if unsent and not abandon:
        raise Conflict(
            f"The {what} has not sent the output files of {unsent} attempt{'s' if unsent > 1 else ''} yet.",
            next_step="Wait until they are sent; to give them up: `--abandon`, or `abandon=true`. An agent that joins "
            "this cluster again with the same data folder still sends them.",
        )
    if unsent:
        jobs = file_outputs.unsent_give_up(
            batch.tx,
            cluster_id,
            agent_ids,
            now_us=batch.now_us,
            error=f"the {what} was removed before it sent them",
            rest_error=f"the {what} was removed before it sent all of them",
        )
        batch.jobs |= jobs  # wakes requests that wait for these jobs
        batch.topics.add(Topic.EXECUTIONS)
    return unsent


def invite_create(context: Context, actor: Actor, name: str, request: InviteRequest) -> NewInvite:
    """Create a join token, and register the cluster if it is new. The token expires no later than the actor's token."""
    existing = context.snapshots.world.by_name.get(name)
    if existing is None or not actor.may_cluster(Role.VIEW, existing):
        actor.need_platform(Role.ADMIN)
    else:
        actor.need_cluster(Role.ADMIN, existing)
    need_right_to_serve(actor, request.namespaces or None)
    invite_id = context.new_id()
    token, hash_ = make_credential("join", invite_id)

    def apply(batch: Batch) -> NewInvite:
        parent = lock_parent_token(batch, actor)
        row = clusters.cluster_by_name(batch.tx, name)
        if row is not None and request.is_ephemeral and not row.is_ephemeral:
            raise Conflict(
                f"There is a cluster {name} already, and it is not ephemeral.",
                next_step="Choose another name, or invite without `ephemeral`.",
            )
        if row is not None:
            serve_invited(batch, row, request)
        new_cluster = ClusterRequest(name, request.is_private, request.groups, namespaces=request.namespaces)
        cluster_id = (
            row.id
            if row
            else register_cluster(batch, context, actor.name, new_cluster, is_ephemeral=request.is_ephemeral)
        )
        parent_expiry = [parent.expires_us] if parent is not None and parent.expires_us is not None else []
        info = Invite(
            id=invite_id,
            cluster=name,
            is_reusable=request.is_reusable,
            expires_us=min([batch.now_us + request.expires_s * 1_000_000, *parent_expiry]),
            created_us=batch.now_us,
        )
        clusters.invite_insert(
            batch.tx,
            clusters.InviteRow(
                id=invite_id,
                cluster_id=cluster_id,
                token_hash=hash_,
                is_reusable=request.is_reusable,
                expires_us=info.expires_us,
                uses=0,
                created_us=batch.now_us,
                revoked_us=None,
                maker_id=actor.user_id,
                parent_id=parent.id if parent is not None else None,
                is_for_job=request.is_for_job,
            ),
        )
        record_audit(batch, context, actor, "cluster.invite", name, after=_invite_summary(info, request))
        return NewInvite(token, info, is_cluster_new=row is None)

    return context.committer.call(apply)


def _invite_summary(info: Invite, request: InviteRequest) -> dict[str, object]:
    """What the audit log has of an invite: the token, and the namespaces that it gave to the cluster."""
    served = {"namespaces": request.namespaces} if request.namespaces else {}
    return {**msgspec.to_builtins(info), **served}


def invite_list(context: Context, actor: Actor, name: str, *, after: str, limit: int) -> list[Invite]:
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.ADMIN, member)
    with context.database.read() as tx:
        rows = clusters.invite_list(tx, member.id, after=after, limit=limit)
    return [invite_view(row, name) for row in rows]


def invite_view(row: clusters.InviteRow, name: str) -> Invite:
    is_revoked = row.revoked_us is not None
    return Invite(row.id, name, bool(row.is_reusable), row.expires_us, row.uses, is_revoked, row.created_us, row.job_id)


def lock_invite(batch: Batch, context: Context, actor: Actor, invite_id: str) -> tuple[clusters.InviteRow, Member]:
    """Lock a join token that the user may change. Returns it with its cluster."""
    row = clusters.invite_lock(batch.tx, invite_id)
    member = context.snapshots.world.by_id.get(row.cluster_id) if row else None
    if row is None or member is None or not actor.may_cluster(Role.VIEW, member):
        raise NotFound(f"There is no invite {invite_id[:40]}.")
    actor.need_cluster(Role.ADMIN, member)
    return row, member


def invite_revoke(context: Context, actor: Actor, invite_id: str) -> None:
    def apply(batch: Batch) -> None:
        row, member = lock_invite(batch, context, actor, invite_id)
        clusters.invite_change(batch.tx, invite_id, clusters.InviteUpdate(revoked_us=batch.now_us))
        by = actor if row.revoked_us is not None else actor.name  # the first revocation is never refused
        record_audit(batch, context, by, "invite.revoke", member.name)

    context.committer.call(apply)


def _audit_summary(cluster: Cluster) -> dict[str, object]:
    return {
        "is_private": cluster.is_private,
        "groups": cluster.groups,
        "labels": cluster.labels,
        "health": cluster.health,
    }
