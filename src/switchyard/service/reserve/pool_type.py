"""What the database knows of token pools: their type, and until when callers may hold tokens of pools in memory."""

from __future__ import annotations

import structlog

from switchyard.errors import Conflict
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.engine import leaders
from switchyard.store.rules import token_pools as store

log = structlog.get_logger()
POOL_TYPE_LEASE = "token pools"  # the leader row whose holder is the pool type
POOL_TYPE_TERM_US = 15_000_000  # the stored type is valid this long after the leader last renewed it


def refuse_other_pool_type(context: Context) -> None:
    """Raise Conflict if other servers use another pool type. Called at the start, before the server grants tokens."""
    if context.database.is_sqlite:
        return  # SQLite has one server
    stored_type = context.committer.call(lambda batch: _claim_pool_type(batch, context.tokens.type))
    if stored_type != context.tokens.type:
        raise Conflict(
            f"The servers of this database have token pools of the type {stored_type}, and this one has "
            f"{context.tokens.type} (resourcemanager.type).",
            next_step="Give all of them one config; to change it stop them all, and wait for 15 s.",
        )
    if stored_type == "memory":
        log.warning("token pools in memory are for one server: with several, only the leader grants tokens; use redis")


def renew_pool_type(batch: Batch, context: Context) -> None:
    """Renew the stored pool type. The leader calls it in the transaction that renews its term."""
    if not context.database.is_sqlite and _claim_pool_type(batch, context.tokens.type) != context.tokens.type:
        log.error("another server has token pools of another type (resourcemanager.type)", own=context.tokens.type)


def release_pool_type(batch: Batch, context: Context) -> None:
    """End the stored pool type. Servers of another type can then start, unless a new leader stores its type first."""
    leaders.leader_leave(batch.tx, POOL_TYPE_LEASE, context.tokens.type, now_us=context.now_us())


def _claim_pool_type(batch: Batch, wanted: str) -> str:
    """Store the wanted type, unless another type is still valid. Returns the type that is valid now."""
    epoch = leaders.leader_take(batch.tx, POOL_TYPE_LEASE, wanted, now_us=batch.now_us, for_us=POOL_TYPE_TERM_US)
    if epoch is not None:
        return wanted
    return leaders.leader_holder(batch.tx, POOL_TYPE_LEASE)


def note_lease(context: Context, namespace: str, lease_s: int) -> None:
    """Store until when callers may hold tokens of the pool `namespace`.

    A restarted server has lost its in-memory pools. It grants these units only after the stored time.
    The stored time lies ahead by the longest lease, so that most calls write nothing.
    """
    if context.tokens.type != "memory":
        return
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None:
        return
    until_us = context.now_us() + max(lease_s, entry.per_s or 0) * 1_000_000
    if entry.leased_until_us >= until_us:
        return
    stored_until_us = until_us + context.tokens.lease_s_max * 1_000_000

    def apply(batch: Batch) -> None:
        bump_version(batch, Topic.TOKENS)
        store.pool_change(batch.tx, namespace, store.TokenPoolUpdate(leased_until_us=stored_until_us))

    context.committer.call(apply)
