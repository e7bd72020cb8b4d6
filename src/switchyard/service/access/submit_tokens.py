"""Submit tokens. The holder of a token may submit to its cluster, or to all clusters of its group, without a grant."""

from __future__ import annotations

from switchyard.errors import BadRequest, Denied, UnknownName
from switchyard.model.cluster.cluster import SubmitConsent, SubmitToken
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.submit_tokens import create_submit_token
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.access import access, submit_tokens


def create_cluster_token(context: Context, actor: Actor, name: str, account: str = "") -> SubmitToken:
    """Create a submit token for a cluster and revoke the previous one.

    `account` owns the jobs that are submitted with this token alone. Since such a token acts for the account, a
    cluster administrator may name only themselves or a user who consented. A platform administrator may name any user.
    """
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.ADMIN, member)
    return SubmitToken(
        name, _create_audited_token(context, actor, GrantTarget.CLUSTER, member.id, what=name, account=account)
    )


def set_consent(context: Context, actor: Actor, name: str, *, is_given: bool) -> SubmitConsent:
    """Give or withdraw the user's consent that cluster administrators create submit tokens in the user's name.

    Withdrawing the consent ends the tokens that were created under it.
    """
    member = visible_cluster(context, actor, name)
    if actor.user_id is None:
        raise BadRequest(f"{actor.name} is not a user.", next_step="Sign in with a user's token.")
    user_id = actor.user_id

    def apply(batch: Batch) -> None:
        if is_given == (submit_tokens.consent_get(batch.tx, member.id, user_id) is not None):
            return  # nothing to record, and no server needs to reload
        if is_given:
            submit_tokens.consent_put(batch.tx, member.id, user_id, at_us=batch.now_us)
        else:
            submit_tokens.consent_delete(batch.tx, member.id, user_id)
            bump_version(batch, Topic.CLUSTERS)
        action = "cluster.consent" if is_given else "cluster.consent-withdraw"
        by = actor if is_given else actor.name  # a withdrawal is never refused
        record_audit(batch, context, by, action, name, after={"account": actor.name})

    context.committer.call(apply)
    return SubmitConsent(name, actor.name, is_given)


def create_group_token(context: Context, actor: Actor, group: str, account: str = "") -> SubmitToken:
    """Create a submit token for all clusters of a group, including clusters that join the group later."""
    actor.need_platform(Role.ADMIN)
    known = {group for member in context.snapshots.world.members for group in member.groups}
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
        record_audit(batch, context, actor, "cluster.submit-token", what, after={"account": account})
        return token

    return context.committer.call(apply)


def _account_id(batch: Batch, actor: Actor, cluster_id: str, *, what: str, account: str) -> str:
    """Return the account's user id. Only a platform administrator learns that a user does not exist."""
    row = access.user_lock(batch.tx, account)
    if row is not None and (actor.is_platform_admin or row.id == actor.user_id):
        return str(row.id)
    if row is not None and submit_tokens.consent_get(batch.tx, cluster_id, row.id) is not None:
        return str(row.id)
    if actor.is_platform_admin:
        raise UnknownName(f"There is no user {account!r}.", next_step="`yard user ls` lists them.")
    raise Denied(
        f"{account} has not agreed that submit tokens of cluster {what} act for them.",
        next_step=f"They agree by `yard cluster agree {what}`; a platform administrator needs no consent.",
    )
