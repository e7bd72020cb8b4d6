"""The part of the table of endpoints that is about token pools."""

from __future__ import annotations

from switchyard.model.api import Deleted, Page
from switchyard.model.tokens import (
    AllocateRequest,
    Allocation,
    PoolChange,
    PoolRequest,
    PoolTokenRequest,
    Released,
    Renewed,
    RenewRequest,
    TokenHolder,
    TokenManager,
    TokenPool,
)
from switchyard.server.http import handlers_tokens as handlers
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.parameters import CURSOR, LIMIT, Query

AT = "/v1/token-pools/{namespace}"
AFTER = Query(
    "after",
    "string",
    "the `next` of the page before; what comes or goes meanwhile may be missed",
    pattern=r"^[0-9a-z:]{0,60}(?!\n)$",
)

TOKENS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/token-pools", "Token pools", Page[TokenPool], handlers.pool_list, query=(LIMIT, CURSOR)),
    Endpoint("GET", "/v1/token-manager", "Which kind of token pools this server has", TokenManager, handlers.manager),
    Endpoint("GET", AT, "One token pool, as it stands", TokenPool, handlers.pool_get),
    Endpoint(
        "PUT", AT, "Register a token pool; again with another quota: 409", TokenPool, handlers.register, PoolRequest
    ),
    Endpoint("PATCH", AT, "Give a token pool another quota", TokenPool, handlers.set_quota, PoolChange),
    Endpoint("DELETE", AT, "Remove a token pool of which nothing is held", Deleted, handlers.remove),
    Endpoint("GET", f"{AT}/holders", "Who holds tokens", Page[TokenHolder], handlers.holders, query=(LIMIT, AFTER)),
    Endpoint("POST", f"{AT}/allocate", "Claim a token for a time", Allocation, handlers.allocate, AllocateRequest),
    Endpoint("POST", f"{AT}/renew", "Let a lease begin anew", Renewed, handlers.renew, RenewRequest),
    Endpoint("POST", f"{AT}/release", "Give a token back", Released, handlers.release, PoolTokenRequest),
)
