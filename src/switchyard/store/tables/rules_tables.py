"""The tables of policy: projects, attributes, token pools, and the rules under which jobs were admitted."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from switchyard.store.engine.metadata import metadata

projects = Table(
    "projects",
    metadata,
    Column("name", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("archived_us", BigInteger, nullable=True),
)

# One row per kind and scope; a part of the scope that is not set is empty. A deleted row stays without a value, so that
# other servers learn of it by its serial: the version of the policy at the last write.
attributes = Table(
    "attributes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("launch_plan", Text, nullable=False),
    Column("rank", Integer, nullable=False),  # of its level: the most specific has the highest
    Column("value", Text, nullable=True),
    Column("etag", Text, nullable=False),  # new at each write, never used again
    Column("serial", BigInteger, nullable=False),
    Column("changed_us", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
)
Index(
    "uq_attributes_scope",
    attributes.c.kind,
    attributes.c.project,
    attributes.c.domain,
    attributes.c.workflow,
    attributes.c.launch_plan,
    unique=True,
)
Index("ix_attributes_rank", attributes.c.kind, attributes.c.rank, attributes.c.id)
Index("ix_attributes_serial", attributes.c.serial)

# The rules under which jobs were admitted, shared by all jobs of a scope.
policies = Table(
    "policies",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("used_us", BigInteger, nullable=False),
)

# How many bytes the jobs of each user take up: output, specs, rows.
usage = Table(
    "usage",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)

# Token pools. Which jobs hold tokens is not stored: it is derived from the live jobs.
token_pools = Table(
    "token_pools",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("quota", BigInteger, nullable=False),
    Column("per_s", Integer, nullable=True),  # of a rate pool
    Column(
        "leased_until_us", BigInteger, nullable=False
    ),  # no lease of a caller lasts longer, where pools are in memory
    Column("created_us", BigInteger, nullable=False),
    Column("changed_us", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
)
