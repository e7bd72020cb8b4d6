"""Store until when callers may hold tokens of an in-memory pool."""

from __future__ import annotations

from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.rules import token_pools as store


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
