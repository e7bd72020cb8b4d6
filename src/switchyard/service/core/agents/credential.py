"""Opaque credentials: `kind_<id>_<secret>`. Only the secret's SHA-256 is stored; comparison takes constant time.

Join tokens and submit tokens are valid only while their maker may still make them. A token records its maker and the
maker's user token. It expires no later than the user token, and is revoked with it (`user_tokens.py`). Tokens of
servers without authentication, and tokens older than this rule, have no maker.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from switchyard.errors import Unauthenticated
from switchyard.model.rules.access import Role
from switchyard.model.wire.ids import LENGTH, is_id
from switchyard.route.member import Member
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Access
from switchyard.service.core.writes.batch import Batch
from switchyard.store.access import access

SECRET_BYTES = 32
TOKEN_CHARS_MAX = 256


def make_credential(kind: str, id_: str) -> tuple[str, str]:
    """Return a new credential and the hash to store."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return f"{kind}_{id_}_{secret}", hash_secret(secret)


def split_credential(text: str, kind: str) -> tuple[str, str] | None:
    """Return the id and the secret of a credential of this kind, or None for any other text."""
    prefix = f"{kind}_"
    if len(text) > TOKEN_CHARS_MAX or not text.startswith(prefix):
        return None
    id_, _, secret = text[len(prefix) :].partition("_")
    if len(id_) != LENGTH or not is_id(id_) or not secret:
        return None
    return id_, secret


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_matches(secret: str, stored_hash: str) -> bool:
    return hmac.compare_digest(hash_secret(secret), stored_hash)


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
