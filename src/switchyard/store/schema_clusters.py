"""The tables of clusters: registrations, what their graphs are made from, agents, invitations, pools and labels."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, text

from switchyard.store.metadata import metadata

NOT_DELETED = "deleted_us IS NULL"

clusters = Table(
    "clusters",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("is_private", Boolean, nullable=False),
    Column("is_cordoned", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("groups", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("graph", Text, nullable=True),
    Column("submit_token_hash", Text, nullable=True),
    Column("state", Text, nullable=False, default="{}"),  # set by hand: name → value, since when, by whom
    Column("created_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger, nullable=True),
)
Index(
    "uq_clusters_name",
    clusters.c.name,
    unique=True,
    sqlite_where=text(NOT_DELETED),
    postgresql_where=text(NOT_DELETED),
)

# What a cluster's graph is made from, as it was given, in gzip's form: the agent's own description (subsystem ''), an
# operator's (`containment`), and every further subsystem. `clusters.graph` is compiled from them at each change.
graph_sources = Table(
    "graph_sources",
    metadata,
    Column("cluster_id", Text, primary_key=True),
    Column("subsystem", Text, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # unpacked
    Column("actor", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster_id", Text, ForeignKey("clusters.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("journal", Text, nullable=False),
    Column("credential_hash", Text, nullable=False),
    # A rotation: the next credential, until it is first used or its time is over; and whether one was asked for.
    Column("next_hash", Text, nullable=True),
    Column("next_until_us", BigInteger, nullable=True),
    Column("is_rotation_asked", Boolean, nullable=False, default=False),
    Column("is_paused", Boolean, nullable=False, default=False),
    Column("reason", Text, nullable=False, default=""),  # why it is paused
    Column("session", BigInteger, nullable=False),
    Column("incarnation", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("load", Text, nullable=True),
    Column("created_us", BigInteger, nullable=False),
    Column("seen_us", BigInteger, nullable=True),
    Column("deleted_us", BigInteger, nullable=True),
)
Index(
    "uq_agents_name",
    agents.c.cluster_id,
    agents.c.name,
    unique=True,
    sqlite_where=text(NOT_DELETED),
    postgresql_where=text(NOT_DELETED),
)

invites = Table(
    "invites",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster_id", Text, ForeignKey("clusters.id"), nullable=False),
    Column("token_hash", Text, nullable=False),
    Column("is_reusable", Boolean, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger, nullable=True),
)

# Pools, labels and defaults: what a server's file said (part `file`, one row), and what was set at run time over it. A
# row without a value was removed, also where the file has it.
layout = Table(
    "layout",
    metadata,
    Column("part", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=True),
    Column("etag", Text, nullable=False),  # new at each write, never used again
    Column("changed_us", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
)
