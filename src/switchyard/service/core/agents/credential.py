"""Opaque credentials: `kind_<id>_<secret>`. Only the secret's SHA-256 is stored; comparison takes constant time."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from switchyard.model.wire.ids import LENGTH, is_id

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
