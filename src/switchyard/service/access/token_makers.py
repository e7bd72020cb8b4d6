"""Join tokens and submit tokens hold only while the user who made them may still make them.

Each records its maker, and the user token that the maker showed. It ends no later than that token, and is revoked
together with it (`user_tokens.py`). Tokens from before this was recorded, and those of a server without
authentication, have no maker and need none.
"""

from __future__ import annotations

from switchyard.errors import Unauthenticated
from switchyard.model.access import Role
from switchyard.route.world import Member
from switchyard.service.committer import Batch
from switchyard.service.rights import Actor
from switchyard.service.snapshots import Access
from switchyard.store import access


def lock_parent_token(batch: Batch, actor: Actor) -> access.Row | None:
    """The token that was shown, locked: revoked at another server at this moment, it makes no more tokens."""
    if actor.token_id is None:
        return None
    row = access.token_lock(batch.tx, actor.token_id)
    if row is None or row.revoked_us is not None or (row.expires_us is not None and row.expires_us <= batch.now_us):
        raise Unauthenticated("This token does not hold: unknown, expired or revoked.")
    return row


def maker_problem(access_now: Access, maker_id: str | None, member: Member | None) -> str:
    """Why a token of this maker does not hold any more; empty: it holds. `member`: none: it is for several clusters."""
    if maker_id is None:
        return ""
    maker = access_now.actor(maker_id)
    if maker is None:
        return "was made by a user who is disabled" if maker_id in access_now.users else "was made by a deleted user"
    may_make = maker.may_cluster(Role.ADMIN, member) if member is not None else maker.is_platform_admin
    return "" if may_make else "was made by a user who is no longer an administrator of its cluster"
