"""Who may do what: roles by grant on a cluster, a cluster group, a project or the platform."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.rules.names import Name, Title

EVERYONE = "everyone"


class Role(StrEnum):
    """Each role includes all roles before it."""

    VIEW = "view"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"


ROLE_RANK = {role: rank for rank, role in enumerate(Role)}


class GrantTarget(StrEnum):
    """What a grant is about. A grant on the platform holds everywhere."""

    PLATFORM = "platform"
    PROJECT = "project"
    CLUSTER = "cluster"
    CLUSTER_GROUP = "cluster-group"


class GranteeKind(StrEnum):
    """Who holds a grant."""

    USER = "user"
    GROUP = "group"
    EVERYONE = EVERYONE


class Grant(Struct, frozen=True, omit_defaults=True):
    """`role` for `subject` on `object`."""

    id: str
    role: Role
    to: GranteeKind
    subject: str
    on: GrantTarget
    object: str
    created_us: int = 0


class GrantRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/grants`: `subject` is ignored for everyone, `object` for the platform."""

    role: Role
    to: GranteeKind
    on: GrantTarget
    subject: Name = EVERYONE
    object: Name = "all"


class User(Struct, frozen=True, omit_defaults=True):
    id: str
    name: str
    full_name: str = ""
    groups: list[str] = []
    is_enabled: bool = True
    created_us: int = 0


class UserRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    full_name: Title = ""
    groups: Annotated[list[Name], Meta(max_length=1000)] = []


class UserChange(Struct, frozen=True, forbid_unknown_fields=True):
    full_name: Title | None = None
    groups: Annotated[list[Name], Meta(max_length=1000)] | None = None
    is_enabled: bool | None = None


class Token(Struct, frozen=True, omit_defaults=True):
    """A token as it is listed. Its secret is shown only once, when the token is made.

    `parent`: the token that it was made with. It ends no later, and is revoked together with it.
    """

    id: str
    user: str
    note: str = ""
    created_us: int = 0
    expires_us: int | None = None
    last_used_us: int | None = None
    is_revoked: bool = False
    parent: str | None = None


class TokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """No user: the token is for the caller. `expires_s`: seconds from now; none: it expires with the caller's token."""

    user: Name | None = None
    note: Title = ""
    expires_s: Annotated[int, Meta(ge=1, le=10 * 366 * 86_400)] | None = None


class NewToken(Struct, frozen=True):
    """A new token with its secret, which is shown only once."""

    token: str
    info: Token
