"""The endpoints of token pools: from a Call to a use case."""

from __future__ import annotations

from switchyard.model.api import Deleted, Page
from switchyard.model.tokens import Allocation, Released, Renewed, TokenHolder, TokenManager, TokenPool
from switchyard.server.http.call import Call
from switchyard.server.http.handlers import page
from switchyard.service.token import pools


def manager(call: Call) -> TokenManager:
    return pools.manager(call.yard.context)


def pool_list(call: Call) -> Page[TokenPool]:
    return page(call, pools.pool_list(call.yard.context), lambda pool: pool.namespace)


def pool_get(call: Call) -> TokenPool:
    return pools.pool_get(call.yard.context, call.path["namespace"])


def register(call: Call) -> TokenPool:
    return pools.register(call.yard.context, call.actor, call.path["namespace"], call.body)


def set_quota(call: Call) -> TokenPool:
    return pools.set_quota(call.yard.context, call.actor, call.path["namespace"], call.body)


def remove(call: Call) -> Deleted:
    pools.remove(call.yard.context, call.actor, call.path["namespace"])
    return Deleted(call.path["namespace"])


def holders(call: Call) -> Page[TokenHolder]:
    return pools.holders(
        call.yard.context,
        call.actor,
        call.path["namespace"],
        after=call.text("after") or "",
        limit=call.limit,
    )


def allocate(call: Call) -> Allocation:
    return pools.allocate(call.yard.context, call.actor, call.path["namespace"], call.body)


def renew(call: Call) -> Renewed:
    return pools.renew(call.yard.context, call.actor, call.path["namespace"], call.body)


def release(call: Call) -> Released:
    found = pools.release(call.yard.context, call.actor, call.path["namespace"], call.body)
    if found.released:
        call.yard.kick_pending()  # a job may wait for just this
    return found
