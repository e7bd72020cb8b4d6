"""Users, their tokens and grants, and the audit log."""

from __future__ import annotations

from switchyard.model.rules.access import (
    Grant,
    GrantRequest,
    NewToken,
    Token,
    TokenRequest,
    User,
    UserChange,
    UserRequest,
)
from switchyard.model.wire.api import AuditEntry, Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, ID_CURSOR, LIMIT, QueryParameter
from switchyard.service.access import user_tokens, users


def user_list(call: Call) -> Page[User]:
    return call.page(users.user_list(call.context, call.actor), lambda user: user.name)


def user_create(call: Call) -> User:
    return users.user_create(call.context, call.actor, call.body)


def user_get(call: Call) -> User:
    return users.user_get(call.context, call.actor, call.path["user"])


def user_change(call: Call) -> User:
    return users.user_change(call.context, call.actor, call.path["user"], call.body)


def user_delete(call: Call) -> Deleted:
    users.user_delete(call.context, call.actor, call.path["user"])
    return Deleted(call.path["user"])


def token_list(call: Call) -> Page[Token]:
    tokens = user_tokens.token_list(call.context, call.actor, after=call.id_cursor or "", limit=call.limit)
    return Page(tokens, tokens[-1].id if len(tokens) == call.limit else None)


def token_create(call: Call) -> NewToken:
    return user_tokens.token_create(call.context, call.actor, call.body)


def token_revoke(call: Call) -> Deleted:
    user_tokens.token_revoke(call.context, call.actor, call.path["token"], only=call.flag("only"))
    return Deleted(call.path["token"])


def grant_list(call: Call) -> Page[Grant]:
    return call.page(users.grant_list(call.context, call.actor), lambda grant: grant.id)


def grant_create(call: Call) -> Grant:
    return users.grant_create(call.context, call.actor, call.body)


def grant_delete(call: Call) -> Deleted:
    users.grant_delete(call.context, call.actor, call.path["grant"])
    return Deleted(call.path["grant"])


def audit_list(call: Call) -> Page[AuditEntry]:
    return users.audit_list(call.context, call.actor, before=call.id_cursor, limit=call.limit)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/users", "Users", Page[User], user_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/users", "Make a user", User, user_create, UserRequest, 201),
    Endpoint("GET", "/v1/users/{user}", "One user", User, user_get),
    Endpoint("PATCH", "/v1/users/{user}", "Change a user", User, user_change, UserChange),
    Endpoint("DELETE", "/v1/users/{user}", "Delete a user", Deleted, user_delete),
    Endpoint("GET", "/v1/tokens", "Tokens, no secrets", Page[Token], token_list, query=(LIMIT, ID_CURSOR)),
    Endpoint("POST", "/v1/tokens", "Make a token, shown once", NewToken, token_create, TokenRequest, 201),
    Endpoint(
        "DELETE",
        "/v1/tokens/{token}",
        "Revoke a token, and those that were made with it",
        Deleted,
        token_revoke,
        query=(QueryParameter("only", "boolean", "those that were made with it live on; for platform administrators"),),
    ),
    Endpoint("GET", "/v1/grants", "Grants", Page[Grant], grant_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/grants", "Grant a role", Grant, grant_create, GrantRequest, 201),
    Endpoint("DELETE", "/v1/grants/{grant}", "Revoke a grant", Deleted, grant_delete),
    Endpoint("GET", "/v1/audit", "The audit log", Page[AuditEntry], audit_list, query=(LIMIT, ID_CURSOR)),
)
