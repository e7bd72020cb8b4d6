"""Which clusters a request names, and which its submit tokens open.

Tokens in `clusters` name the candidates: one that is not valid denies the request. Tokens in `submit_tokens` were saved
by the user for all submits: they open further clusters and bound nothing, so one that is not valid is only reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from switchyard.errors import Denied, UnknownName
from switchyard.model.job.job import ClusterToken, JobRequest
from switchyard.model.rules.access import Role
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.core.submit_tokens import find_opened_clusters

NAMES_SHOWN = 10  # of saved tokens, in a refusal


@dataclass(frozen=True, slots=True)
class NamedClusters:
    """Ids of clusters, sorted. `named`: where the job may run; None: anywhere."""

    named: tuple[str, ...] | None
    by_token: tuple[str, ...]
    by_saved_token: tuple[str, ...]


def find_named_clusters(snapshots: Snapshots, actor: Actor, request: JobRequest) -> NamedClusters:
    """Return the clusters that the request names and opens. A token in `clusters` that is not valid denies it."""
    by_token = _open_clusters(snapshots, request.clusters)
    saved = {
        member.id
        for entry in dict.fromkeys(request.submit_tokens)
        for member in find_opened_clusters(snapshots, entry.name, entry.token)
    }
    named = by_token if request.clusters else None
    if request.cluster is not None:
        pinned = _pinned_cluster(snapshots, actor, request, opened=by_token | saved)
        named = {pinned} if named is None else named & {pinned}
    return NamedClusters(
        None if named is None else tuple(sorted(named)), tuple(sorted(by_token)), tuple(sorted(saved - by_token))
    )


def find_stale_tokens(snapshots: Snapshots, request: JobRequest) -> list[str]:
    """Return the names in `submit_tokens` whose token opens no cluster."""
    return [
        entry.name
        for entry in dict.fromkeys(request.submit_tokens)
        if not find_opened_clusters(snapshots, entry.name, entry.token)
    ]


def _open_clusters(snapshots: Snapshots, entries: Iterable[ClusterToken]) -> set[str]:
    opened: set[str] = set()
    for entry in dict.fromkeys(entries):
        members = find_opened_clusters(snapshots, entry.name, entry.token)
        if not members:
            raise Denied(
                f"The submit token for cluster {entry.name} is not valid.",
                next_step="Correct it, or leave the cluster out: one invalid token denies the request.",
            )
        opened.update(member.id for member in members)
    return opened


def _pinned_cluster(snapshots: Snapshots, actor: Actor, request: JobRequest, *, opened: set[str]) -> str:
    """Return the id of the one cluster that the request names, if the actor or a submit token may use it."""
    world = snapshots.world
    member = world.by_name.get(request.cluster or "")
    if member is None or not (member.id in opened or actor.may_cluster(Role.VIEW, member)):
        known = ", ".join(m.name for m in world.members if actor.may_cluster(Role.VIEW, m)) or "none"
        step = f"{_stale_text(snapshots, request)}Known clusters: {known}."
        raise UnknownName(f"There is no cluster {request.cluster!r}.", next_step=step)
    if member.id not in opened:
        try:
            actor.need_cluster(Role.SUBMIT, member)
        except Denied as exc:
            raise Denied(exc.detail, next_step=f"{_stale_text(snapshots, request)}{exc.next_step}") from exc
    return member.id


def _stale_text(snapshots: Snapshots, request: JobRequest) -> str:
    """A refusal may come from a saved token that is not valid any more: the user could not see that otherwise."""
    names = ", ".join(find_stale_tokens(snapshots, request)[:NAMES_SHOWN])
    return f"Of your saved submit tokens, those for {names} open no cluster any more. " if names else ""
