"""The tables of probation: how attempts ended, and which clusters and nodes are on probation."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text

from switchyard.store.engine.metadata import metadata

# Only of jobs that failed quickly somewhere: the other jobs leave no row. Rows are forgotten after a while.
attempt_evidence = Table(
    "attempt_evidence",
    metadata,
    Column("owner_id", Text, primary_key=True),
    Column("cluster_id", Text, primary_key=True),
    Column("subject", Text, primary_key=True),  # an array's id, or the name of plain jobs; empty: any job of the owner
    Column("node", Text, primary_key=True),  # empty: unknown
    Column("fails", Integer, nullable=False),  # quick failures in a row
    Column("ok_us", BigInteger, nullable=False),  # when one last did well; 0: never since the first failure
    Column("last_us", BigInteger, nullable=False),  # of either
    Column("reason", Text, nullable=False),  # of the last failure
)
Index("ix_attempt_evidence_last", attempt_evidence.c.last_us)

probations = Table(
    "probations",
    metadata,
    Column("cluster_id", Text, primary_key=True),
    Column("owner_id", Text, primary_key=True),  # whose jobs; empty: everybody's
    Column("node", Text, primary_key=True),  # that jobs avoid; empty: the whole cluster
    Column("subject", Text, nullable=False),  # the jobs that led to it
    Column("state", Text, nullable=False),  # on · ended · off
    Column("is_confirmed", Boolean, nullable=False),  # by an operator: no canaries
    Column("reason", Text, nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Column("next_us", BigInteger, nullable=False),  # when the next canary may start
    Column("last_us", BigInteger, nullable=False),  # of the last change
    Column("passed", Integer, nullable=False),
    Column("level", Integer, nullable=False),  # pauses double with each
    Column("canaries", Text, nullable=False),  # as JSON: the tasks that are being tried
)
