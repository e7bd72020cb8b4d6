"""The endpoints of token pools: from a Call to a use case."""

from __future__ import annotations

from switchyard.model.api import Deleted, Page
from switchyard.model.tokens import Allocation, Released, Renewed, TokenHolder, TokenManager, TokenPool
from switchyard.server.http.call import Call
from switchyard.server.http.handlers import page_of
from switchyard.service.token import pool_calls


def token_manager_get(call: Call) -> TokenManager:
    return pool_calls.pool_manager(call.yard.context)


def pool_list(call: Call) -> Page[TokenPool]:
    return page_of(call, pool_calls.pool_list(call.yard.context), lambda pool: pool.namespace)


def pool_get(call: Call) -> TokenPool:
    return pool_calls.pool_get(call.yard.context, call.path["namespace"])


def pool_register(call: Call) -> TokenPool:
    return pool_calls.register(call.yard.context, call.actor, call.path["namespace"], call.body)


def pool_set_quota(call: Call) -> TokenPool:
    return pool_calls.set_quota(call.yard.context, call.actor, call.path["namespace"], call.body)


def pool_remove(call: Call) -> Deleted:
    pool_calls.remove(call.yard.context, call.actor, call.path["namespace"])
    return Deleted(call.path["namespace"])


def holder_list(call: Call) -> Page[TokenHolder]:
    return pool_calls.holders(
        call.yard.context,
        call.actor,
        call.path["namespace"],
        after=call.text("after") or "",
        limit=call.limit,
    )


def allocate(call: Call) -> Allocation:
    return pool_calls.allocate(call.yard.context, call.actor, call.path["namespace"], call.body)


def renew(call: Call) -> Renewed:
    return pool_calls.renew(call.yard.context, call.actor, call.path["namespace"], call.body)


def release(call: Call) -> Released:
    found = pool_calls.release(call.yard.context, call.actor, call.path["namespace"], call.body)
    if found.released:
        call.yard.kick_pending()  # a job may wait for just this
    return found
