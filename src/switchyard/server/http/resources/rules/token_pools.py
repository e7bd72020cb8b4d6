"""Token pools."""

from __future__ import annotations

from switchyard.model.rules.tokens import (
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
from switchyard.model.wire.api import Deleted, Page
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, LIMIT, QueryParameter
from switchyard.service.token import pool_calls

POOL_PATH = "/v1/token-pools/{namespace}"

HOLDER_CURSOR = QueryParameter(
    "after",
    "string",
    "the `next` of the page before; what comes or goes meanwhile may be missed",
    pattern=r"^[0-9a-z:]{0,60}(?!\n)$",
)


def token_manager_get(call: Call) -> TokenManager:
    return pool_calls.pool_manager(call.context)


def pool_list(call: Call) -> Page[TokenPool]:
    return call.page(pool_calls.pool_list(call.context), lambda pool: pool.namespace)


def pool_get(call: Call) -> TokenPool:
    return pool_calls.pool_get(call.context, call.path["namespace"])


def pool_register(call: Call) -> TokenPool:
    return pool_calls.register(call.context, call.actor, call.path["namespace"], call.body)


def pool_set_quota(call: Call) -> TokenPool:
    return pool_calls.set_quota(call.context, call.actor, call.path["namespace"], call.body)


def pool_remove(call: Call) -> Deleted:
    pool_calls.remove(call.context, call.actor, call.path["namespace"])
    return Deleted(call.path["namespace"])


def holder_list(call: Call) -> Page[TokenHolder]:
    return pool_calls.holders(
        call.context, call.actor, call.path["namespace"], after=call.text("after") or "", limit=call.limit
    )


def allocate(call: Call) -> Allocation:
    return pool_calls.allocate(call.context, call.actor, call.path["namespace"], call.body)


def renew(call: Call) -> Renewed:
    return pool_calls.renew(call.context, call.actor, call.path["namespace"], call.body)


def release(call: Call) -> Released:
    answer = pool_calls.release(call.context, call.actor, call.path["namespace"], call.body)
    if answer.released:
        call.wakeups.wake_pending()  # a job may wait for just this
    return answer


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/token-pools", "Token pools", Page[TokenPool], pool_list, query=(LIMIT, CURSOR)),
    Endpoint("GET", "/v1/token-manager", "The type of token pools of this server", TokenManager, token_manager_get),
    Endpoint("GET", POOL_PATH, "One token pool", TokenPool, pool_get),
    Endpoint(
        "PUT",
        POOL_PATH,
        "Register a token pool; again with another quota: 409",
        TokenPool,
        pool_register,
        TokenPoolRequest,
    ),
    Endpoint("PATCH", POOL_PATH, "Change the quota of a token pool", TokenPool, pool_set_quota, TokenPoolChange),
    Endpoint("DELETE", POOL_PATH, "Remove a token pool; none of its tokens may be held", Deleted, pool_remove),
    Endpoint(
        "GET",
        f"{POOL_PATH}/holders",
        "The holders of tokens",
        Page[TokenHolder],
        holder_list,
        query=(LIMIT, HOLDER_CURSOR),
    ),
    Endpoint("POST", f"{POOL_PATH}/allocate", "Claim a token for a time", Allocation, allocate, AllocateRequest),
    Endpoint("POST", f"{POOL_PATH}/renew", "Renew the lease of a token", Renewed, renew, RenewRequest),
    Endpoint("POST", f"{POOL_PATH}/release", "Release a token", Released, release, PoolTokenRequest),
)
