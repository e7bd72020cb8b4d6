"""Find, check and create submit tokens."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.model.rules.access import GrantTarget
from switchyard.route.member import Member
from switchyard.service.core.agents.credential import (
    hash_secret,
    lock_parent_token,
    make_credential,
    maker_problem,
    secret_matches,
    split_credential,
)
from switchyard.service.core.agents.fleet import SubmitTokenEntry
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.access import submit_tokens

_EMPTY_SECRET_HASH = hash_secret("")


def find_submit_token(snapshots: Snapshots, member: Member | None, token: str) -> SubmitTokenEntry | None:
    """Return the token if it is valid for this cluster. The check takes constant time for unknown tokens too."""
    parts = split_credential(token, "submit")
    entry = snapshots.fleet.submit_tokens.get(parts[0]) if parts else None
    is_secret_right = secret_matches(parts[1] if parts else token, entry.hash if entry else _EMPTY_SECRET_HASH)
    if entry is None or member is None or not is_secret_right:
        return None
    return entry if _is_for_cluster(entry, member) and _is_valid(snapshots, entry, member) else None


def find_opened_clusters(snapshots: Snapshots, name: str, token: str) -> list[Member]:
    """Return the clusters of this name that the token opens: the cluster, or all clusters of the token's group."""
    world = snapshots.world
    member = world.by_name.get(name)
    if member is not None and find_submit_token(snapshots, member, token) is not None:
        return [member]
    parts = split_credential(token, "submit")
    entry = snapshots.fleet.submit_tokens.get(parts[0]) if parts else None
    if parts is None or entry is None or not secret_matches(parts[1], entry.hash):
        return []
    if entry.on is not GrantTarget.CLUSTER_GROUP or entry.object != name:
        return []
    return [member for member in world.members if name in member.groups and _is_valid(snapshots, entry, member)]


def _is_valid(snapshots: Snapshots, entry: SubmitTokenEntry, member: Member) -> bool:
    """Whether a submit token has not expired, and its maker may still make submit tokens."""
    if entry.expires_us is not None and entry.expires_us <= snapshots.now_us():
        return False
    return not maker_problem(snapshots.access, entry.maker_id, member if entry.on is GrantTarget.CLUSTER else None)


def _is_for_cluster(entry: SubmitTokenEntry, member: Member) -> bool:
    return entry.object == member.id if entry.on is GrantTarget.CLUSTER else entry.object in member.groups


def clusters_with_older_token(snapshots: Snapshots, clusters: Iterable[str], job_id: str) -> tuple[str, ...]:
    """Return the clusters that still have a valid submit token older than the job.

    Only an older token can have admitted the job. The job's own token is not stored; ids sort by creation time.
    """
    world = snapshots.world
    older_tokens = [entry for token_id, entry in snapshots.fleet.submit_tokens.items() if token_id < job_id]
    members = [world.by_id[cluster_id] for cluster_id in clusters if cluster_id in world.by_id]
    return tuple(
        member.id
        for member in members
        if any(_is_for_cluster(entry, member) and _is_valid(snapshots, entry, member) for entry in older_tokens)
    )


def create_submit_token(
    batch: Batch, context: Context, on: GrantTarget, object_: str, account: str = "", *, maker: Actor | None = None
) -> str:
    """Create a submit token. `account`: user id that will own the jobs. `maker`: None if a cluster registers itself."""
    parent = lock_parent_token(batch, maker) if maker is not None else None
    token_id = context.new_id()
    token, hash_ = make_credential("submit", token_id)
    row = submit_tokens.SubmitTokenRow(
        id=token_id,
        on_kind="cluster" if on is GrantTarget.CLUSTER else "cluster-group",
        object=object_,
        account=account,
        hash=hash_,
        created_us=batch.now_us,
        maker_id=maker.user_id if maker is not None else None,
        parent_id=parent.id if parent is not None else None,
        expires_us=parent.expires_us if parent is not None else None,
    )
    submit_tokens.submit_token_put(batch.tx, row)
    bump_version(batch, Topic.CLUSTERS)
    return token
