"""Tokens of users."""

from __future__ import annotations

from switchyard.model.rules.access import NewToken, Token, TokenRequest
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ID_CURSOR, LIMIT, QueryParameter
from switchyard.service.access import user_tokens


def token_list(call: Call) -> Page[Token]:
    tokens = user_tokens.token_list(call.context, call.actor, after=call.id_cursor or "", limit=call.limit)
    return Page(tokens, tokens[-1].id if len(tokens) == call.limit else None)


def token_create(call: Call) -> NewToken:
    return user_tokens.token_create(call.context, call.actor, call.body)


def token_revoke(call: Call) -> Deleted:
    user_tokens.token_revoke(call.context, call.actor, call.path["token"], only=call.flag("only"))
    return Deleted(call.path["token"])


ENDPOINTS: tuple[Endpoint, ...] = (
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
)
