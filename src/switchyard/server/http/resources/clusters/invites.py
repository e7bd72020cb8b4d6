"""Invites: the join tokens by which agents join a cluster, and those of groups of clusters."""

from __future__ import annotations

from switchyard.errors import Malformed
from switchyard.model.cluster.cluster import (
    GroupInvite,
    GroupInviteRequest,
    Invite,
    InviteJob,
    InviteRequest,
    NewGroupInvite,
    NewInvite,
)
from switchyard.model.rules.names import is_name
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ID_CURSOR, LIMIT
from switchyard.service.cluster import clusters, group_invites, pilots


def invite_create(call: Call) -> NewInvite:
    return clusters.invite_create(call.context, call.actor, _name(call, "cluster"), call.body)


def invite_list(call: Call) -> Page[Invite]:
    after = call.id_cursor or ""
    invites = clusters.invite_list(call.context, call.actor, call.path["cluster"], after=after, limit=call.limit)
    return Page(invites, invites[-1].id if len(invites) == call.limit else None)


def invite_revoke(call: Call) -> Deleted:
    clusters.invite_revoke(call.context, call.actor, call.path["invite"])
    return Deleted(call.path["invite"])


def invite_bind(call: Call) -> Invite:
    return pilots.bind_invite(call.context, call.actor, call.path["invite"], call.body.job)


def group_invite_create(call: Call) -> NewGroupInvite:
    return group_invites.group_invite_create(call.context, call.actor, _name(call, "group"), call.body)


def group_invite_list(call: Call) -> Page[GroupInvite]:
    after, group = call.id_cursor or "", _name(call, "group")
    invites = group_invites.group_invite_list(call.context, call.actor, group, after=after, limit=call.limit)
    return Page(invites, invites[-1].id if len(invites) == call.limit else None)


def group_invite_revoke(call: Call) -> Deleted:
    group_invites.group_invite_revoke(call.context, call.actor, call.path["group"], call.path["invite"])
    return Deleted(call.path["invite"])


def _name(call: Call, word: str) -> str:
    if not is_name(call.path[word]):
        raise Malformed(f"{call.path[word][:80]!r} is not a valid name.")
    return call.path[word]


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/clusters/{cluster}/invites",
        "A join token; registers the cluster if it is new",
        NewInvite,
        invite_create,
        InviteRequest,
        201,
    ),
    Endpoint(
        "GET",
        "/v1/clusters/{cluster}/invites",
        "Join tokens of a cluster",
        Page[Invite],
        invite_list,
        query=(LIMIT, ID_CURSOR),
    ),
    Endpoint("DELETE", "/v1/invites/{invite}", "Revoke a join token", Deleted, invite_revoke),
    Endpoint("PUT", "/v1/invites/{invite}/job", "Bind a join token to a job", Invite, invite_bind, InviteJob),
    Endpoint(
        "POST",
        "/v1/cluster-groups/{group}/invites",
        "A join token by which a number of agents join, each with a cluster of the group",
        NewGroupInvite,
        group_invite_create,
        GroupInviteRequest,
        201,
    ),
    Endpoint(
        "GET",
        "/v1/cluster-groups/{group}/invites",
        "Join tokens of a group",
        Page[GroupInvite],
        group_invite_list,
        query=(LIMIT, ID_CURSOR),
    ),
    Endpoint(
        "DELETE",
        "/v1/cluster-groups/{group}/invites/{invite}",
        "Revoke a join token of a group",
        Deleted,
        group_invite_revoke,
    ),
)
