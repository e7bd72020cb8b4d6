"""Test whether the database accepts writes, by a write that leaves nothing behind."""

from __future__ import annotations

import secrets

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.tables.schema import leaders

PROBE_BYTES = 4096  # of random text: about the size of a job, so that a full disk is noticed


def write_probe(tx: Tx) -> None:
    """Insert a row and delete it. Its name is random, so that no other server waits for it."""
    name = f"probe-{secrets.token_hex(8)}"
    filler = secrets.token_hex(PROBE_BYTES // 2)
    tx.execute(sa.insert(leaders), {"name": name, "holder": filler, "epoch": 0, "expires_us": 0})
    tx.execute(sa.delete(leaders).where(leaders.c.name == name))
