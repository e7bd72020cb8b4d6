"""Join tokens and submit tokens are valid only while their maker may still make them.

A token records its maker and the maker's user token. It expires no later than the user token, and is revoked with it
(`user_tokens.py`). Tokens of servers without authentication, and tokens older than this rule, have no maker.
"""

from __future__ import annotations

from switchyard.errors import Unauthenticated
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Access
from switchyard.service.core.writes.batch import Batch
from switchyard.store.access import access


def lock_parent_token(batch: Batch, actor: Actor) -> access.TokenRow | None:
    """Lock and return the actor's user token, if any. A token that another server just revoked is refused."""
    if actor.token_id is None:
        return None
    row = access.token_lock(batch.tx, actor.token_id)
    if row is None or row.revoked_us is not None or (row.expires_us is not None and row.expires_us <= batch.now_us):
        raise Unauthenticated("This token does not hold: unknown, expired or revoked.")
    return row


def maker_problem(access_now: Access, maker_id: str | None, member: Member | None) -> str:
    """Return why a token of this maker is no longer valid; empty: it is valid. `member`: None for a cluster group."""
    if maker_id is None:
        return ""
    maker = access_now.actor(maker_id)
    if maker is None:
        return "was made by a user who is disabled" if maker_id in access_now.users else "was made by a deleted user"
    may_make = maker.may_cluster(Role.ADMIN, member) if member is not None else maker.is_platform_admin
    return "" if may_make else "was made by a user who is no longer an administrator of its cluster"
