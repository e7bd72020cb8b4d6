"""Find the clusters that a request names or has submit tokens for."""

from __future__ import annotations

from switchyard.errors import Denied, UnknownName
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.access import Role
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.core.submit_tokens import find_submit_token


def named_clusters(
    snapshots: Snapshots, actor: Actor, request: JobRequest
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the allowed clusters (none: all) and those with a submit token. An invalid token denies the request."""
    world = snapshots.world
    by_token: set[str] = set()
    for entry in request.clusters:
        member = world.by_name.get(entry.name)
        if find_submit_token(snapshots, member, entry.token) is None or member is None:
            raise Denied(
                f"The submit token for cluster {entry.name} is not valid.",
                next_step="Correct or remove it under `clusters:` in your file: one invalid token denies the request.",
            )
        by_token.add(member.id)
    allowed = frozenset(by_token) if request.clusters else None
    if request.cluster is None:
        return allowed, frozenset(by_token)
    member = world.by_name.get(request.cluster)
    if member is None or not (member.id in by_token or actor.may_cluster(Role.VIEW, member)):
        known = ", ".join(m.name for m in world.members if actor.may_cluster(Role.VIEW, m)) or "none"
        raise UnknownName(f"There is no cluster {request.cluster!r}.", next_step=f"Known clusters: {known}.")
    if member.id not in by_token:
        actor.need_cluster(Role.SUBMIT, member)
    pinned = frozenset({member.id})
    return (pinned if allowed is None else allowed & pinned), frozenset(by_token)
