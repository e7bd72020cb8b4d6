"""Submit tokens: whoever shows one may submit to its cluster, or to every cluster of its group, without a grant."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.errors import BadRequest, Denied, UnknownName
from switchyard.model.access import GrantTarget, Role
from switchyard.model.cluster import SubmitConsent, SubmitToken
from switchyard.route.world import Member
from switchyard.service.access.token_makers import lock_parent_token, maker_problem
from switchyard.service.cluster.clusters import visible_cluster
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.credential import hash_secret, make_credential, secret_matches, split_credential
from switchyard.service.fleet import SubmitTokenEntry
from switchyard.service.rights import Actor
from switchyard.service.snapshots import Snapshots
from switchyard.store import access, submit_tokens

_EMPTY_SECRET_HASH = hash_secret("")


def find_submit_token(snapshots: Snapshots, member: Member | None, token: str) -> SubmitTokenEntry | None:
    """The token that this text is, if it holds for this cluster. One that does not takes as long to find out."""
    parts = split_credential(token, "submit")
    entry = snapshots.fleet.submit_tokens.get(parts[0]) if parts else None
    is_its = secret_matches(parts[1] if parts else token, entry.hash if entry else _EMPTY_SECRET_HASH)
    if entry is None or member is None or not is_its:
        return None
    return entry if _is_for_cluster(entry, member) and _holds(snapshots, entry, member) else None


def _holds(snapshots: Snapshots, entry: SubmitTokenEntry, member: Member) -> bool:
    """Whether a submit token has not ended, and its maker may still make it."""
    if entry.expires_us is not None and entry.expires_us <= snapshots.now_us():
        return False
    return not maker_problem(snapshots.access, entry.maker_id, member if entry.on is GrantTarget.CLUSTER else None)


def _is_for_cluster(entry: SubmitTokenEntry, member: Member) -> bool:
    return entry.object == member.id if entry.on is GrantTarget.CLUSTER else entry.object in member.groups


def clusters_with_older_token(snapshots: Snapshots, clusters: Iterable[str], job_id: str) -> tuple[str, ...]:
    """Of the clusters that a job showed tokens for, those with a token as old as the job: no other can have opened it.

    Tokens themselves are kept nowhere; ids are in the order of their making.
    """
    world = snapshots.world
    older = [entry for token_id, entry in snapshots.fleet.submit_tokens.items() if token_id < job_id]
    members = [world.by_id[each] for each in clusters if each in world.by_id]
    return tuple(
        member.id
        for member in members
        if any(_is_for_cluster(entry, member) and _holds(snapshots, entry, member) for entry in older)
    )


def create_cluster_token(context: Context, actor: Actor, name: str, account: str = "") -> SubmitToken:
    """A new one for a cluster; the one before it ends. `account`: whose jobs they are that show nothing else.

    Such a token acts for its account, so an administrator of the cluster makes one only for themselves and for users
    who agreed; a platform administrator for anybody.
    """
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.ADMIN, member)
    return SubmitToken(
        name, _create_audited_token(context, actor, GrantTarget.CLUSTER, member.id, what=name, account=account)
    )


def set_consent(context: Context, actor: Actor, name: str, *, is_given: bool) -> SubmitConsent:
    """A user agrees that the administrators of a cluster make submit tokens in their name, or withdraws it.

    What was withdrawn ends the tokens that were made by it.
    """
    member = visible_cluster(context, actor, name)
    if actor.user_id is None:
        raise BadRequest(f"{actor.name} is not a user.", next_step="Sign in with a user's token.")
    user_id = actor.user_id

    def apply(batch: Batch) -> None:
        if is_given:
            submit_tokens.consent_put(batch.tx, member.id, user_id, at_us=batch.now_us)
        else:
            submit_tokens.consent_delete(batch.tx, member.id, user_id)
            bump_version(batch, "clusters")
        word = "cluster.consent" if is_given else "cluster.consent-withdraw"
        record_audit(batch, context, actor.name, word, name, after={"account": actor.name})

    context.committer.call(apply)
    return SubmitConsent(name, actor.name, is_given)


def create_group_token(context: Context, actor: Actor, group: str, account: str = "") -> SubmitToken:
    """A new one for all clusters of a group, those that join it later included."""
    actor.need_platform(Role.ADMIN)
    known = {each for member in context.snapshots.world.members for each in member.groups}
    if group not in known:
        raise UnknownName(
            f"No cluster is in a group {group!r}.", next_step=f"Known groups: {', '.join(sorted(known)) or 'none'}."
        )
    return SubmitToken(
        group,
        _create_audited_token(context, actor, GrantTarget.CLUSTER_GROUP, group, what=f"group {group}", account=account),
    )


def _create_audited_token(
    context: Context, actor: Actor, on: GrantTarget, object_: str, *, what: str, account: str
) -> str:
    def apply(batch: Batch) -> str:
        account_id = _account_id(batch, actor, object_, what=what, account=account) if account else ""
        token = create_submit_token(batch, context, on, object_, account_id, maker=actor)
        record_audit(batch, context, actor.name, "cluster.submit-token", what, after={"account": account})
        return token

    return context.committer.call(apply)


def _account_id(batch: Batch, actor: Actor, cluster_id: str, *, what: str, account: str) -> str:
    """Whose jobs they are, by id. That a user does not exist is a platform administrator's to know."""
    row = access.user_lock(batch.tx, account)
    if row is not None and (actor.is_platform_admin or row.id == actor.user_id):
        return str(row.id)
    if row is not None and submit_tokens.consent_get(batch.tx, cluster_id, row.id) is not None:
        return str(row.id)
    if actor.is_platform_admin:
        raise UnknownName(f"There is no user {account!r}.", next_step="`yard user ls` lists them.")
    raise Denied(
        f"{account} has not agreed that submit tokens of cluster {what} act for them.",
        next_step=f"They agree by `yard cluster agree {what}`; a platform administrator may do without.",
    )


def create_submit_token(
    batch: Batch, context: Context, on: GrantTarget, object_: str, account: str = "", *, maker: Actor | None = None
) -> str:
    """Make and keep one; it is in the answer alone. `account`: a user's id. `maker`: none: a cluster that registers."""
    parent = lock_parent_token(batch, maker) if maker is not None else None
    token_id = context.new_id()
    token, hash_ = make_credential("submit", token_id)
    row = {
        "id": token_id,
        "on_kind": on.value,
        "object": object_,
        "account": account,
        "hash": hash_,
        "created_us": batch.now_us,
        "maker_id": maker.user_id if maker is not None else None,
        "parent_id": parent.id if parent is not None else None,
        "expires_us": parent.expires_us if parent is not None else None,
    }
    submit_tokens.submit_token_put(batch.tx, row)
    bump_version(batch, "clusters")
    return token
