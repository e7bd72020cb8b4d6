"""The tables of clusters: registrations, sources of graphs, agents, invites, the layout, submit tokens, handovers."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, false, text

from switchyard.store.engine.metadata import metadata

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
    Column("state", Text, nullable=False, default="{}"),  # set by hand: name → value, since when, by whom
    Column("created_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger, nullable=True),
    Column("is_ephemeral", Boolean, nullable=False, server_default=false()),  # it leaves with its last agent
    Column("group_invite_id", Text, nullable=True),  # the group join token that registered it
    # Patterns of the namespaces that a Kubernetes cluster serves, as JSON; an empty list: no agent joins as Kubernetes.
    Column("namespaces", Text, nullable=False, server_default="[]"),
)
Index(
    "uq_clusters_name",
    clusters.c.name,
    unique=True,
    sqlite_where=text(NOT_DELETED),
    postgresql_where=text(NOT_DELETED),
)

# What a cluster was like. A row is written when its health changes, and every few minutes if its load has changed; it
# holds until the next one.
cluster_samples = Table(
    "cluster_samples",
    metadata,
    Column("cluster_id", Text, primary_key=True),
    Column("at_us", BigInteger, primary_key=True),
    Column("health", Text, nullable=False),
    Column("cores", BigInteger, nullable=False),
    Column("cores_used", BigInteger, nullable=True),
    Column("gpus", BigInteger, nullable=False),
    Column("gpus_used", BigInteger, nullable=True),
    Column("running", BigInteger, nullable=True),
    Column("queued", BigInteger, nullable=True),
)
Index("ix_cluster_samples_at", cluster_samples.c.at_us)

# The sources of a cluster's graph, compressed with gzip: the agent's description (subsystem ''), an operator's
# (`containment`), and further subsystems. `clusters.graph` is compiled from them at each change.
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
    # Rotation of the credential: the next one, until its first use or its end; and whether a rotation was requested.
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
    # The process that has the agent's session, as it described its journal (model.poll.Origin); NULL: it did not.
    Column("starts", BigInteger, nullable=True),
    Column("writes", BigInteger, nullable=True),
    Column("place", Text, nullable=True),
    Column("rival", Text, nullable=True),  # the last other process that asked for the session, as JSON (model.rival)
    # Whether the process that has the session names itself in all calls, by a header. Older agents do not.
    Column("is_named", Boolean, nullable=False, server_default=false()),
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
    Column("maker_id", Text, nullable=True),  # the user who made it; none: made before this was recorded
    Column("parent_id", Text, nullable=True),  # the user token it was made with
    # The token of a pilot: only an agent inside of the job `job_id` joins with it. Without a job yet: nobody does.
    Column("is_for_job", Boolean, nullable=False, server_default=false()),
    Column("job_id", Text, nullable=True),
)
Index("ix_invites_cluster", invites.c.cluster_id)

# A group join token lets a bounded number of agents join. Each agent registers a cluster of the group, or joins one
# that an agent with the same token registered.
group_invites = Table(
    "group_invites",
    metadata,
    Column("id", Text, primary_key=True),
    Column("group_name", Text, nullable=False),
    Column("token_hash", Text, nullable=False),
    Column("uses_max", Integer, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("is_private", Boolean, nullable=False),  # of the clusters it registers
    Column("is_ephemeral", Boolean, nullable=False),  # of the clusters it registers
    Column("expires_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger, nullable=True),
    Column("maker_id", Text, nullable=True),  # as of invites; none: made on a server without authentication
    Column("parent_id", Text, nullable=True),
    Column("namespaces", Text, nullable=False, server_default="[]"),  # of the clusters it registers
)
Index("ix_group_invites_group", group_invites.c.group_name, group_invites.c.id)

# Pools, labels and defaults: the layout of a server's file (part `file`, one row), and values set over it at run time.
# A row without a value is removed, even if the file has it.
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

# A submit token allows submits to a cluster, or to every cluster of a group, without a grant. `account`: the id of the
# user who owns the jobs if the caller shows only this token; empty: none.
submit_tokens = Table(
    "submit_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("on_kind", Text, nullable=False),  # cluster · cluster-group
    Column("object", Text, nullable=False),  # the registration's id, or the group's name
    Column("account", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("maker_id", Text, nullable=True),  # as of invites; none also: the cluster got it when it registered itself
    Column("parent_id", Text, nullable=True),
    Column("expires_us", BigInteger, nullable=True),  # when the token it was made with ends
)
Index("uq_submit_tokens", submit_tokens.c.on_kind, submit_tokens.c.object, submit_tokens.c.account, unique=True)

# Users who agreed that a cluster's administrators make submit tokens in their name.
submit_consents = Table(
    "submit_consents",
    metadata,
    Column("cluster_id", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("created_us", BigInteger, nullable=False),
)

# Attempts that were given to clusters without an agent, each under a new number that fits in 32 bits. A number that was
# drawn at submit has no fence before its delivery. `jobspec`: as it was submitted.
handovers = Table(
    "handovers",
    metadata,
    # Larger than in the protocol, so that we notice when numbers run out. SQLite increments only an INTEGER.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("job_id", Text, nullable=False),
    Column("cluster_id", Text, nullable=False),
    Column("fence", BigInteger, nullable=True),
    Column("jobspec", Text, nullable=True),
    Column("received_us", BigInteger, nullable=True),
    Column("accepted_us", BigInteger, nullable=True),
    Column("is_open", Boolean, nullable=False),  # received, and neither accepted nor taken back
    Column("is_counted", Boolean, nullable=False),  # accepted, and its job counts in its queue and concurrency group
    sqlite_autoincrement=True,
)
HANDOVER_OPEN = "is_open"
HANDOVER_COUNTED = "is_counted"
Index("ix_handovers_job", handovers.c.job_id, handovers.c.number)
Index(
    "ix_handovers_open",
    handovers.c.received_us,
    sqlite_where=text(HANDOVER_OPEN),
    postgresql_where=text(HANDOVER_OPEN),
)
Index(
    "ix_handovers_counted",
    handovers.c.accepted_us,
    sqlite_where=text(HANDOVER_COUNTED),
    postgresql_where=text(HANDOVER_COUNTED),
)
