"""The tables of map nodes: one row per map, and its elements in parts of many."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text, text

from switchyard.store.engine.metadata import metadata

LIVE_MAP = "phase <> 'CLOSED'"

# One row per map node. Its elements run as tasks of one array; further tries of some of them are one more array.
execution_maps = Table(
    "execution_maps",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("size", Integer, nullable=False),  # elements
    Column("minimum", Integer, nullable=False),  # elements that have to succeed
    Column("parallelism", Integer, nullable=False),  # elements that may run at once; 0: no bound
    Column("runs_all", Boolean, nullable=False),  # all elements run, also if the minimum cannot be reached any more
    Column("is_stopped", Boolean, nullable=False),  # no further array begins
    Column("node", LargeBinary, nullable=False),  # that each element runs
    Column("template", LargeBinary, nullable=False),  # of its task
    Column("attempt", Integer, nullable=False),  # the number of the array that runs or ran last; -1: there was none
    Column("job_id", Text, nullable=True),  # that array
    Column("indexes", Text, nullable=False),  # the elements in it
    Column("seen", Integer, nullable=False),  # elements of this array whose end is stored
    Column("succeeded", Integer, nullable=False),
    Column("failed", Integer, nullable=False),  # for good
    Column("output_bytes", BigInteger, nullable=False),
    Column("error", LargeBinary, nullable=True),
    Column("changes", Integer, nullable=False),  # a change holds only if no other one came between
    Column("updated_us", BigInteger, nullable=False),
    Column("bound", Text, nullable=True),  # inputs that each element gets whole, if its elements are cached
)
Index(
    "ix_execution_maps_live",
    execution_maps.c.execution_id,
    sqlite_where=text(LIVE_MAP),
    postgresql_where=text(LIVE_MAP),
)

# The elements of a map, some hundred in a row.
execution_map_parts = Table(
    "execution_map_parts",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("states", LargeBinary, nullable=False),  # one byte for each element
    Column("results", LargeBinary, nullable=False),  # outputs and failures of elements
)
