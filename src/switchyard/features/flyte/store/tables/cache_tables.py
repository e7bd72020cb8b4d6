"""The tables of cached tasks: outputs by key, who runs a task that others wait for, and who waits."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text

from switchyard.store.engine.metadata import metadata

task_cache = Table(
    "task_cache",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("project", Text, nullable=False),
    Column("outputs", LargeBinary, nullable=False),
    Column("source", Text, nullable=False),  # execution, node and attempt that made the outputs
    Column("stored_us", BigInteger, nullable=False),
)
Index("ix_task_cache_stored", task_cache.c.project, task_cache.c.stored_us)

# A node that runs a serialized task. The row goes with the end of the node, in one transaction.
cache_reservations = Table(
    "cache_reservations",
    metadata,
    Column("key", LargeBinary, primary_key=True),
    Column("execution_id", Text, nullable=False),
    Column("node_id", Text, nullable=False),
)
Index("ix_cache_reservations_node", cache_reservations.c.execution_id, cache_reservations.c.node_id)

# A node that waits for the end of another one with the same key.
cache_waits = Table(
    "cache_waits",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("key", LargeBinary, nullable=False),
)
