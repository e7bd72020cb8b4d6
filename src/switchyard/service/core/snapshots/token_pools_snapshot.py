"""The snapshot of all token pools."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.service.core.snapshots.token_settings import PoolEntry
from switchyard.store.engine.database import Tx
from switchyard.store.rules import token_pools as token_store


@dataclass(frozen=True, slots=True)
class TokenPoolsSnapshot:
    """All token pools at one version."""

    version: int
    entries: dict[str, PoolEntry]


def load_token_pools(tx: Tx, version: int) -> TokenPoolsSnapshot:
    return TokenPoolsSnapshot(
        version,
        {
            row.namespace: PoolEntry(
                row.quota, row.per_s, row.leased_until_us, row.created_us, row.changed_us, row.changed_by
            )
            for row in token_store.pool_all(tx)
        },
    )
