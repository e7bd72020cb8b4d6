"""Clusters and agents: register, invite, cordon, delete. A registration is an identity; a name is only a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from switchyard.errors import Conflict, NameTaken, NoSuchCluster, NotFound
from switchyard.model.access import GranteeKind, GrantTarget, Role
from switchyard.model.cluster import (
    Cluster,
    ClusterChange,
    ClusterRequest,
    Health,
    Invite,
    InviteRequest,
    NewInvite,
)
from switchyard.model.selection import Scalar, StateValue
from switchyard.route.world import Member
from switchyard.service.access.token_makers import lock_parent_token
from switchyard.service.cluster.cluster_state import set_manual_values, state_values
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.credential import make_credential
from switchyard.service.fleet import ClusterEntry
from switchyard.service.quote.quotes import quote_record_of
from switchyard.service.rights import Actor
from switchyard.store import access, clusters, graphs, leases, submit_tokens

CONFIG_FILE_ACTOR = "config file"  # who registers a cluster that the server's file names
DISABLED_REASON = "the server's file does not enable it"
RESERVED_CLUSTER_NAMES = ("fit",)  # `/v1/clusters/fit` asks all clusters


def visible_cluster(context: Context, actor: Actor, name: str) -> Member:
    member = context.snapshots.world.by_name.get(name)
    if member is None or not actor.may_cluster(Role.VIEW, member):
        raise NoSuchCluster(f"There is no cluster {name[:128]!r}, or it is not yours to see.")
    return member


def cluster_list(context: Context, actor: Actor) -> list[Cluster]:
    fleet, members = context.snapshots.fleet, context.snapshots.world.members
    seen = [member for member in members if member.id in fleet.rows and actor.may_cluster(Role.VIEW, member)]
    return [_view(context, member, fleet.rows[member.id], []) for member in seen]


def cluster_view(context: Context, member: Member | None) -> Cluster:
    """A cluster as the API shows it. The two snapshots change one after the other: it may be gone from one already."""
    row = context.snapshots.fleet.rows.get(member.id) if member else None
    if member is None or row is None:
        raise NoSuchCluster("The cluster was deleted a moment ago.")
    bound_us = context.selections.stale_after_us
    state = state_values(context.snapshots, member.id, now_us=context.now_us(), stale_after_us=bound_us)
    return msgspec.structs.replace(_view(context, member, row, state), quotes=quote_record_of(context, member.id))


def _view(context: Context, member: Member, row: ClusterEntry, state: list[StateValue]) -> Cluster:
    agents = context.snapshots.fleet.by_cluster.get(member.id, ())
    seen = [context.snapshots.seen[agent] for agent in agents if agent in context.snapshots.seen]
    is_open = context.snapshots.access.is_open(member)
    return Cluster(
        id=member.id,
        name=member.name,
        health=member.health,
        reason=member.reason,
        is_private=member.is_private,
        is_by_token=not member.is_private and not is_open,
        groups=list(member.groups),
        labels=row.labels,
        backend=row.backend,
        totals=member.graph.totals if member.graph else {},
        load=context.snapshots.load_of(member.id),
        state=state,
        created_us=row.created_us,
        seen_us=max(seen, default=None),
    )


def cluster_create(context: Context, actor: Actor, request: ClusterRequest) -> Cluster:
    actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> str:
        if clusters.cluster_by_name(batch.tx, request.name) is not None:
            raise NameTaken(f"There is a cluster {request.name} already.")
        return register_cluster(batch, context, actor.name, request)

    cluster_id = context.committer.call(apply)
    return cluster_view(context, context.snapshots.world.by_id.get(cluster_id))


def register_cluster(batch: Batch, context: Context, actor: str, request: ClusterRequest) -> str:
    """A new registration; open to everyone's jobs unless private."""
    if request.name in RESERVED_CLUSTER_NAMES:
        raise NameTaken(f"No cluster can be called {request.name}: it is a word of the API.")
    cluster_id = context.new_id()
    row = {
        "id": cluster_id,
        "name": request.name,
        "is_private": request.is_private,
        "is_cordoned": False,
        "reason": "",
        "groups": msgspec.json.encode(sorted(set(request.groups))).decode(),
        "labels": msgspec.json.encode(request.labels, order="sorted").decode(),
        "backend": "",
        "graph": None,
        "created_us": batch.now_us,
        "deleted_us": None,
    }
    clusters.cluster_insert(batch.tx, row)
    if not request.is_private:
        _open_to_everyone(batch, context, cluster_id)
    bump_version(batch, "clusters")
    record_audit(batch, context, actor, "cluster.create", request.name, after=request)
    return cluster_id


def register_configured_cluster(
    batch: Batch, context: Context, name: str, *, is_enabled: bool, was_enabled: bool | None
) -> None:
    """A cluster that the server's file names: there is one, down until an agent joins it. Not enabled: cordoned.

    The file's word counts when it is new; what was cordoned or let go at run time since stays so.
    """
    row = clusters.cluster_by_name(batch.tx, name)
    cluster_id = row.id if row else register_cluster(batch, context, CONFIG_FILE_ACTOR, ClusterRequest(name))
    if row is not None and is_enabled == was_enabled:
        return
    if is_enabled and (row is None or row.reason != DISABLED_REASON):
        return
    clusters.cluster_change(
        batch.tx, cluster_id, {"is_cordoned": not is_enabled, "reason": "" if is_enabled else DISABLED_REASON}
    )
    bump_version(batch, "clusters")
    batch.clusters.add(cluster_id)
    record_audit(batch, context, CONFIG_FILE_ACTOR, "cluster.change", name, after={"is_cordoned": not is_enabled})


def _open_to_everyone(batch: Batch, context: Context, cluster_id: str) -> None:
    _grant_everyone(batch, context, cluster_id, Role.SUBMIT)


def restrict_to_submit_tokens(batch: Batch, context: Context, cluster_id: str) -> None:
    """Everyone sees the cluster, and those submit to it who show its submit token, until an administrator shares it."""
    access.grant_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=cluster_id, everyone=True)
    _grant_everyone(batch, context, cluster_id, Role.VIEW)


def _grant_everyone(batch: Batch, context: Context, cluster_id: str, role: Role) -> None:
    grant = {
        "id": context.new_id(),
        "role": role.value,
        "to_kind": GranteeKind.EVERYONE.value,
        "subject": GranteeKind.EVERYONE.value,
        "on_kind": GrantTarget.CLUSTER.value,
        "object": cluster_id,
        "created_us": batch.now_us,
    }
    access.grant_insert(batch.tx, grant)
    bump_version(batch, "access")


def cluster_change(context: Context, actor: Actor, name: str, change: ClusterChange) -> Cluster:
    """Cordoning and setting state need `operate`; everything else is the administrator's."""
    member = visible_cluster(context, actor, name)
    is_operating = change.is_private is None and change.groups is None and change.labels is None
    actor.need_cluster(Role.OPERATE if is_operating else Role.ADMIN, member)
    columns: dict[str, object] = {}
    if change.is_cordoned is not None:
        # Said once more without a reason: the one before still holds.
        before_reason = member.reason if member.health is Health.CORDONED else ""
        reason = (change.reason or before_reason) if change.is_cordoned else ""
        columns |= {"is_cordoned": change.is_cordoned, "reason": reason}
    if change.is_private is not None:
        columns["is_private"] = change.is_private
    if change.groups is not None:
        columns["groups"] = msgspec.json.encode(sorted(set(change.groups))).decode()
    if change.labels is not None:
        columns["labels"] = msgspec.json.encode(change.labels, order="sorted").decode()

    def apply(batch: Batch) -> None:
        if change.state:
            row = clusters.cluster_lock(batch.tx, member.id)
            columns["state"] = (
                set_manual_values(row.state, change.state, at_us=batch.now_us, by=actor.name) if row else "{}"
            )
        if not columns:
            return
        before = cluster_view(context, member)
        clusters.cluster_change(batch.tx, member.id, columns)
        if change.is_private is not None:  # said once more, it also shares a cluster that was reached by tokens alone
            access.grant_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=member.id, everyone=True)
            bump_version(batch, "access")
            if not change.is_private:
                _open_to_everyone(batch, context, member.id)
        bump_version(batch, "clusters")
        batch.clusters.add(member.id)  # what waits there may be leased from now on
        record_audit(batch, context, actor.name, "cluster.change", name, before=_audit_summary(before), after=change)

    context.committer.call(apply)
    return cluster_view(context, context.snapshots.world.by_id.get(member.id))


def cluster_delete(context: Context, actor: Actor, name: str, *, abandon: bool = False) -> None:
    """The registration ends: its agents are gone, its grants too; a new one of the name inherits no jobs."""
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.ADMIN, member)
    end_registration(context, member, by=actor.name, abandon=abandon)


def end_registration(context: Context, member: Member, *, by: str, abandon: bool) -> None:
    """Whoever asks has the right to."""

    def apply(batch: Batch) -> None:
        agents = context.snapshots.fleet.by_cluster.get(member.id, ())
        refuse_while_jobs_live(batch, agents, f"cluster {member.name}", abandon)
        clusters.cluster_change(batch.tx, member.id, {"deleted_us": batch.now_us, "graph": None})
        graphs.source_delete_of(batch.tx, member.id)
        clusters.agent_delete_of(batch.tx, member.id, at_us=batch.now_us)
        access.grant_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=member.id)
        submit_tokens.submit_token_delete_of(batch.tx, on_kind=GrantTarget.CLUSTER.value, object_=member.id)
        submit_tokens.consent_delete_of(batch.tx, member.id)
        bump_version(batch, "clusters")
        bump_version(batch, "access")
        batch.clusters.add(member.id)  # its parked polls come back now, and are told
        record_audit(
            batch, context, by, "cluster.delete", member.name, before=_audit_summary(cluster_view(context, member))
        )

    context.committer.call(apply)


def set_polled_state(context: Context, cluster_id: str, state: Mapping[str, Scalar | None], *, by: str) -> None:
    """A cluster that only polls says how it is. It holds until it says otherwise."""

    def apply(batch: Batch) -> None:
        row = clusters.cluster_lock(batch.tx, cluster_id)
        if row is not None:
            changed = set_manual_values(row.state, state, at_us=batch.now_us, by=by)
            clusters.cluster_change(batch.tx, cluster_id, {"state": changed})
            bump_version(batch, "clusters")

    context.committer.call(apply)


def refuse_while_jobs_live(batch: Batch, agent_ids: Sequence[str], what: str, abandon: bool) -> None:
    """What runs there would end as FAILED while its processes go on: only for who says so."""
    held = 0 if abandon else leases.leased_count(batch.tx, list(agent_ids))
    if held:
        raise Conflict(
            f"The {what} has {held} job{'' if held == 1 else 's'} that {'has' if held == 1 else 'have'} not ended.",
            next_step="Cordon it and wait, or cancel them; to give them up (they end as FAILED, their processes are "
            "left alone): `--abandon`, or `abandon=true`.",
        )


def invite_create(context: Context, actor: Actor, name: str, request: InviteRequest) -> NewInvite:
    """A join token for a cluster, which is registered if it is new. It ends no later than the token it is made with."""
    existing = context.snapshots.world.by_name.get(name)
    if existing is None or not actor.may_cluster(Role.VIEW, existing):
        actor.need_platform(Role.ADMIN)
    else:
        actor.need_cluster(Role.ADMIN, existing)
    invite_id = context.new_id()
    token, hash_ = make_credential("join", invite_id)

    def apply(batch: Batch) -> Invite:
        parent = lock_parent_token(batch, actor)
        row = clusters.cluster_by_name(batch.tx, name)
        fresh = ClusterRequest(name, request.is_private, request.groups)
        cluster_id = row.id if row else register_cluster(batch, context, actor.name, fresh)
        ends = [parent.expires_us] if parent is not None and parent.expires_us is not None else []
        info = Invite(
            id=invite_id,
            cluster=name,
            is_reusable=request.is_reusable,
            expires_us=min([batch.now_us + request.expires_s * 1_000_000, *ends]),
            created_us=batch.now_us,
        )
        clusters.invite_insert(
            batch.tx,
            {
                "id": invite_id,
                "cluster_id": cluster_id,
                "token_hash": hash_,
                "is_reusable": request.is_reusable,
                "expires_us": info.expires_us,
                "uses": 0,
                "created_us": batch.now_us,
                "revoked_us": None,
                "maker_id": actor.user_id,
                "parent_id": parent.id if parent is not None else None,
            },
        )
        record_audit(batch, context, actor.name, "cluster.invite", name, after=info)
        return info

    return NewInvite(token, context.committer.call(apply))


def invite_list(context: Context, actor: Actor, name: str, *, after: str, limit: int) -> list[Invite]:
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.ADMIN, member)
    with context.database.read() as tx:
        rows = clusters.invite_list(tx, member.id, after=after, limit=limit)
    return [
        Invite(
            row.id, name, bool(row.is_reusable), row.expires_us, row.uses, row.revoked_us is not None, row.created_us
        )
        for row in rows
    ]


def invite_revoke(context: Context, actor: Actor, invite_id: str) -> None:
    def apply(batch: Batch) -> None:
        row = clusters.invite_lock(batch.tx, invite_id)
        member = context.snapshots.world.by_id.get(row.cluster_id) if row else None
        if row is None or member is None or not actor.may_cluster(Role.VIEW, member):
            raise NotFound(f"There is no invite {invite_id[:40]}.")
        actor.need_cluster(Role.ADMIN, member)
        clusters.invite_change(batch.tx, invite_id, {"revoked_us": batch.now_us})
        record_audit(batch, context, actor.name, "invite.revoke", member.name)

    context.committer.call(apply)


def _audit_summary(cluster: Cluster) -> dict[str, object]:
    return {
        "is_private": cluster.is_private,
        "groups": cluster.groups,
        "labels": cluster.labels,
        "health": cluster.health,
    }
