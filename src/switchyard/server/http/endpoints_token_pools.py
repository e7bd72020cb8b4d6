"""The part of the table of endpoints that is about token pools."""

from __future__ import annotations

from switchyard.model.api import Deleted, Page
from switchyard.model.tokens import (
    AllocateRequest,
    Allocation,
    PoolTokenRequest,
    Released,
    Renewed,
    RenewRequest,
    TokenHolder,
    TokenManager,
    TokenPool,
    TokenPoolChange,
    TokenPoolRequest,
)
from switchyard.server.http import handlers_token_pools as handlers
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT, QueryParameter

POOL_PATH = "/v1/token-pools/{namespace}"
HOLDER_CURSOR = QueryParameter(
    "after",
    "string",
    "the `next` of the page before; what comes or goes meanwhile may be missed",
    pattern=r"^[0-9a-z:]{0,60}(?!\n)$",
)

TOKEN_POOL_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/token-pools", "Token pools", Page[TokenPool], handlers.pool_list, query=(LIMIT, CURSOR)),
    Endpoint(
        "GET",
        "/v1/token-manager",
        "Which kind of token pools this server has",
        TokenManager,
        handlers.token_manager_get,
    ),
    Endpoint("GET", POOL_PATH, "One token pool, as it stands", TokenPool, handlers.pool_get),
    Endpoint(
        "PUT",
        POOL_PATH,
        "Register a token pool; again with another quota: 409",
        TokenPool,
        handlers.pool_register,
        TokenPoolRequest,
    ),
    Endpoint(
        "PATCH", POOL_PATH, "Give a token pool another quota", TokenPool, handlers.pool_set_quota, TokenPoolChange
    ),
    Endpoint("DELETE", POOL_PATH, "Remove a token pool of which nothing is held", Deleted, handlers.pool_remove),
    Endpoint(
        "GET",
        f"{POOL_PATH}/holders",
        "Who holds tokens",
        Page[TokenHolder],
        handlers.holder_list,
        query=(LIMIT, HOLDER_CURSOR),
    ),
    Endpoint(
        "POST", f"{POOL_PATH}/allocate", "Claim a token for a time", Allocation, handlers.allocate, AllocateRequest
    ),
    Endpoint("POST", f"{POOL_PATH}/renew", "Let a lease begin anew", Renewed, handlers.renew, RenewRequest),
    Endpoint("POST", f"{POOL_PATH}/release", "Give a token back", Released, handlers.release, PoolTokenRequest),
)
