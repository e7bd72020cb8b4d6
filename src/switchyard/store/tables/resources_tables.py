"""The tables of cluster resources: renderings that people asked for, objects of namespaces, and reports of agents."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Table, Text

from switchyard.store.engine.metadata import metadata

# The last rendering of a project's and domain's cluster resources that somebody asked for.
renders = Table(
    "renders",
    metadata,
    Column("project", Text, primary_key=True),
    Column("domain", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)

# The objects that the namespace of a project and domain gets on every Kubernetes cluster, with contents of Secrets.
namespace_resources = Table(
    "namespace_resources",
    metadata,
    Column("project", Text, primary_key=True),
    Column("domain", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("inputs", Text, nullable=False),  # digest of templates and values: equal inputs are not rendered again
    Column("digest", Text, nullable=False),  # of the objects; empty: they were never rendered
    Column("body", Text, nullable=False),
    Column("mistake", Text, nullable=False),  # of the last try; the objects are then those of an earlier one
    Column("at_us", BigInteger, nullable=False),
)

# The last report of a cluster's agent on one namespace.
namespace_reports = Table(
    "namespace_reports",
    metadata,
    Column("cluster_id", Text, primary_key=True),
    Column("namespace", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)
