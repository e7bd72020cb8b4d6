"""The tables of registered entities: tasks, workflows and launch plans of Flyte's, with their contents."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text, text

from switchyard.store.engine.metadata import metadata

ACTIVE_ENTITY = "is_active"

# Equal contents of several entities are stored once, by their SHA-256.
entity_contents = Table(
    "entity_contents",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

# One row per version. Nothing of it changes but whether a launch plan is active, and when that changed.
entities = Table(
    "entities",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("domain", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),  # of the content, in bytes
    Column("signature", LargeBinary, nullable=False),  # what it takes and gives
    Column("type", Text, nullable=False),  # of a task
    Column("description", Text, nullable=False),
    Column("workflow_project", Text, nullable=False),  # of a launch plan, as the next three
    Column("workflow_domain", Text, nullable=False),
    Column("workflow_name", Text, nullable=False),
    Column("workflow_version", Text, nullable=False),
    Column("schedule_type", Text, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
)
Index(
    "ix_entities_created",
    entities.c.kind,
    entities.c.project,
    entities.c.domain,
    entities.c.created_us,
)
# At most one version of a launch plan is active.
Index(
    "uq_entities_active",
    entities.c.kind,
    entities.c.project,
    entities.c.domain,
    entities.c.name,
    unique=True,
    sqlite_where=text(ACTIVE_ENTITY),
    postgresql_where=text(ACTIVE_ENTITY),
)

# One row per name, made with its first version.
entity_names = Table(
    "entity_names",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("domain", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("name_description", Text, nullable=False),
    Column("name_state", Integer, nullable=False),
)

# How much each project has registered, for its limits.
entity_usage = Table(
    "entity_usage",
    metadata,
    Column("project", Text, primary_key=True),
    Column("entities", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
