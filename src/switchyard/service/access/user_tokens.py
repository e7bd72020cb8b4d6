"""Tokens that users sign in with. A token that was made with another one ends no later, and is revoked with it."""

from __future__ import annotations

import msgspec

from switchyard.errors import NotFound, UnknownName
from switchyard.model.access import NewToken, Role, Token, TokenRequest
from switchyard.service.access.token_makers import lock_parent_token
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.credential import make_credential
from switchyard.service.rights import Actor
from switchyard.store import access, clusters, submit_tokens


def token_create(context: Context, actor: Actor, request: TokenRequest) -> NewToken:
    """For oneself, or by an administrator for another. It ends no later than the token it is made with."""
    name = request.user or actor.name
    if name != actor.name:
        actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> NewToken:
        row = access.user_by_name(batch.tx, name)
        if row is None:
            raise UnknownName(f"There is no user {name!r}.", next_step="`yard user add` makes one.")
        parent = lock_parent_token(batch, actor)
        token, info = make_token(batch, context, row.id, request, name, parent=parent)
        bump_version(batch, "access")
        record_audit(batch, context, actor.name, "token.create", name, after=info)
        return NewToken(token, info)

    return context.committer.call(apply)


def token_list(context: Context, actor: Actor, *, after: str, limit: int) -> list[Token]:
    """An administrator sees all, others their own; never the secret."""
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
    """End a token and all that were made with it: user tokens, join tokens, submit tokens.

    `only`: those live on, which a platform administrator decides. They stay those that were made with this token, so a
    later call without `only` ends them after all.
    """
    if only:
        actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> None:
        row = access.token_lock(batch.tx, token_id)
        if row is None or not (actor.is_platform_admin or row.user_id == actor.user_id):
            raise NotFound(f"There is no token {token_id[:40]}.", next_step="`yard token ls` lists the tokens.")
        made = [] if only else access.token_descendants(batch.tx, token_id)
        access.token_revoke(batch.tx, [token_id, *made], at_us=batch.now_us)
        if not only:
            clusters.invite_revoke_made_with(batch.tx, [token_id, *made], at_us=batch.now_us)
            if submit_tokens.submit_token_delete_made_with(batch.tx, [token_id, *made]):
                bump_version(batch, "clusters")
        bump_version(batch, "access")
        record_audit(batch, context, actor.name, "token.revoke", token_id, after={"with": made} if made else None)

    context.committer.call(apply)


def make_token(
    batch: Batch,
    context: Context,
    user_id: str,
    request: TokenRequest,
    name: str,
    *,
    parent: access.Row | None = None,
) -> tuple[str, Token]:
    """A new token of a user, and what is shown of it from then on."""
    token_id = context.new_id()
    token, hash_ = make_credential("yard", token_id)
    ends = [parent.expires_us] if parent is not None and parent.expires_us is not None else []
    ends += [batch.now_us + request.expires_s * 1_000_000] if request.expires_s else []
    expires_us = min(ends, default=None)
    row = {
        "id": token_id,
        "user_id": user_id,
        "hash": hash_,
        "note": request.note,
        "created_us": batch.now_us,
        "expires_us": expires_us,
        "last_used_us": None,
        "revoked_us": None,
        "parent_id": parent.id if parent is not None else None,
    }
    access.token_insert(batch.tx, row)
    shown = Token(token_id, name, request.note, batch.now_us, expires_us)
    return token, msgspec.structs.replace(shown, parent=parent.id if parent is not None else None)
