"""All servers of one database have token pools of one type: with two, one would let jobs run that the other counts."""

from __future__ import annotations

import structlog

from switchyard.errors import Conflict
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.store import leaders

log = structlog.get_logger()
POOL_TYPE_LEASE = "token pools"  # the row that says which
POOL_TYPE_TERM_US = 15_000_000  # after the last word of a server that leads


def refuse_other_pool_type(context: Context) -> None:
    """At the start, before anything is granted."""
    if context.database.is_sqlite:
        return  # it has one server
    held = context.committer.call(lambda batch: _claim_pool_type(batch, context.tokens.type))
    if held != context.tokens.type:
        raise Conflict(
            f"The servers of this database have token pools of the type {held}, and this one has "
            f"{context.tokens.type} (resourcemanager.type).",
            next_step="Give all of them one config; to change it stop them all, and wait for 15 s.",
        )
    if held == "memory":
        log.warning("token pools in memory are for one server: with several, only the one that leads grants; use redis")


def renew_pool_type(batch: Batch, context: Context) -> None:
    """By the server that leads, in the transaction of its term."""
    if not context.database.is_sqlite and _claim_pool_type(batch, context.tokens.type) != context.tokens.type:
        log.error("another server has token pools of another type (resourcemanager.type)", own=context.tokens.type)


def release_pool_type(batch: Batch, context: Context) -> None:
    """The next one that leads says it again; if there is none, another type may come at once."""
    leaders.leader_leave(batch.tx, POOL_TYPE_LEASE, context.tokens.type, now_us=context.now_us())


def _claim_pool_type(batch: Batch, own: str) -> str:
    """The type that holds: this one, unless another still does."""
    if leaders.leader_take(batch.tx, POOL_TYPE_LEASE, own, now_us=batch.now_us, for_us=POOL_TYPE_TERM_US) is not None:
        return own
    return leaders.leader_holder(batch.tx, POOL_TYPE_LEASE)
