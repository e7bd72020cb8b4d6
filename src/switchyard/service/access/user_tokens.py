"""Tokens that users sign in with. A token made with a parent token expires no later, and is revoked with the parent."""

from __future__ import annotations

import msgspec

from switchyard.errors import LimitReached, NotFound, UnknownName
from switchyard.model.rules.access import NewToken, Role, Token, TokenRequest
from switchyard.service.core.agents.credential import lock_parent_token, make_credential
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.access import access, submit_tokens
from switchyard.store.clusters import clusters, group_invites

USER_TOKENS_MAX = 1000  # live tokens of one user


def token_create(context: Context, actor: Actor, request: TokenRequest) -> NewToken:
    """Create a token for the actor, or, as an administrator, for another user. It expires no later than its parent."""
    name = request.user or actor.name
    if name != actor.name:
        actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> NewToken:
        row = access.user_by_name(batch.tx, name)
        if row is None:
            raise UnknownName(f"There is no user {name!r}.", next_step="`yard user add` makes one.")
        parent = lock_parent_token(batch, actor)
        _refuse_token_too_many(batch, actor, row.id, name)
        token, info = make_token(batch, context, row.id, request, name, parent=parent)
        bump_version(batch, Topic.ACCESS)
        record_audit(batch, context, actor, "token.create", name, after=info)
        return NewToken(token, info)

    return context.committer.call(apply)


def _refuse_token_too_many(batch: Batch, actor: Actor, user_id: str, name: str) -> None:
    """Refuse a token beyond the bound per user. Every server keeps all tokens in memory."""
    if actor.is_platform_admin:
        return
    if access.token_count_live(batch.tx, user_id, now_us=batch.now_us) >= USER_TOKENS_MAX:
        raise LimitReached(
            f"{name} has {USER_TOKENS_MAX:,} live tokens, the most that one user may have (limit `tokens`).",
            next_step="Revoke some (`yard token revoke`), or let new ones end sooner.",
        )


def token_list(context: Context, actor: Actor, *, after: str, limit: int) -> list[Token]:
    """Return all tokens to an administrator, and to others their own. Secrets are never shown."""
    if not actor.is_platform_admin and actor.user_id is None:
        return []
    with context.database.read() as tx:
        rows = access.token_list(tx, None if actor.is_platform_admin else actor.user_id, after=after, limit=limit)
    return [
        Token(
            row.id,
            row.user,
            row.note,
            row.created_us,
            row.expires_us,
            row.last_used_us,
            row.revoked_us is not None,
            row.parent_id,
        )
        for row in rows
    ]


def token_revoke(context: Context, actor: Actor, token_id: str, *, only: bool = False) -> None:
    """Revoke a token and all tokens made with it: user tokens, join tokens, submit tokens.

    `only` revokes this token alone; it needs a platform administrator. The other tokens keep their parent, so a later
    call without `only` revokes them too.
    """
    if only:
        actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> None:
        row = access.token_lock(batch.tx, token_id)
        if row is None or not (actor.is_platform_admin or row.user_id == actor.user_id):
            raise NotFound(f"There is no token {token_id[:40]}.", next_step="`yard token ls` lists the tokens.")
        descendants = [] if only else access.token_descendants(batch.tx, token_id)
        revoked = [token_id, *descendants]
        access.token_revoke(batch.tx, revoked, at_us=batch.now_us)
        if not only:
            clusters.invite_revoke_made_with(batch.tx, revoked, at_us=batch.now_us)
            group_invites.group_invite_revoke_made_with(batch.tx, revoked, at_us=batch.now_us)
            if submit_tokens.submit_token_delete_made_with(batch.tx, revoked):
                bump_version(batch, Topic.CLUSTERS)
        bump_version(batch, Topic.ACCESS)
        details = {"with": descendants} if descendants else None
        # The first revocation is never refused: somebody else may have spent the budget with a stolen token.
        by = actor if row.revoked_us is not None else actor.name
        record_audit(batch, context, by, "token.revoke", token_id, after=details)

    context.committer.call(apply)


def make_token(
    batch: Batch,
    context: Context,
    user_id: str,
    request: TokenRequest,
    name: str,
    *,
    parent: access.TokenRow | None = None,
) -> tuple[str, Token]:
    """Store a new token of a user. Return the token itself and its public description."""
    token_id = context.new_id()
    token, hash_ = make_credential("yard", token_id)
    expiries = [parent.expires_us] if parent is not None and parent.expires_us is not None else []
    expiries += [batch.now_us + request.expires_s * 1_000_000] if request.expires_s else []
    expires_us = min(expiries, default=None)
    row = access.TokenRow(
        id=token_id,
        user_id=user_id,
        hash=hash_,
        note=request.note,
        created_us=batch.now_us,
        expires_us=expires_us,
        last_used_us=None,
        revoked_us=None,
        parent_id=parent.id if parent is not None else None,
    )
    access.token_insert(batch.tx, row)
    info = Token(token_id, name, request.note, batch.now_us, expires_us)
    return token, msgspec.structs.replace(info, parent=parent.id if parent is not None else None)
