"""The tables of Flyte's executions: their nodes, attempts and maps, what is cached, and files that clients upload."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text, false, text

from switchyard.store.engine.metadata import metadata

DUE_EXECUTION = "is_due"
AWAITED_EXECUTION = "is_awaited"
LIVE_ATTEMPT = "ended_us IS NULL"
LIVE_EXECUTION = "ended_us IS NULL"
ENDED_EXECUTION = "ended_us IS NOT NULL"
WAKING_NODE = "wake_us IS NOT NULL"
LIVE_MAP = "phase <> 'CLOSED'"


def _index_where(name: str, column: Column[Any], condition: str) -> None:
    """An index of the rows of which a condition holds."""
    Index(name, column, sqlite_where=text(condition), postgresql_where=text(condition))


# One row per execution. Messages of Flyte's are stored in their own form.
executions = Table(
    "executions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("owner_id", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),  # of the request: the same request again is the same execution
    Column("spec", LargeBinary, nullable=False),
    Column("inputs", LargeBinary, nullable=False),  # with defaults and fixed values
    Column("outputs", LargeBinary, nullable=True),
    Column("error", LargeBinary, nullable=True),
    Column("phase", Text, nullable=False),
    Column("is_archived", Boolean, nullable=False),
    Column("is_due", Boolean, nullable=False),  # the engine has to look at it, whatever its jobs do
    Column("is_stopping", Boolean, nullable=False),  # its jobs were asked to end
    Column("steps", BigInteger, nullable=False),  # of the engine: a step holds only if no other one came between
    Column("entity_kind", Text, nullable=False),  # what was launched: a launch plan or a task
    Column("entity_project", Text, nullable=False),
    Column("entity_domain", Text, nullable=False),
    Column("entity_name", Text, nullable=False),
    Column("entity_version", Text, nullable=False),
    Column("workflow_project", Text, nullable=False),  # what runs; of a task: made for it
    Column("workflow_domain", Text, nullable=False),
    Column("workflow_name", Text, nullable=False),
    Column("workflow_version", Text, nullable=False),
    Column("abort_cause", Text, nullable=False),
    Column("abort_by", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("started_us", BigInteger, nullable=True),
    Column("ended_us", BigInteger, nullable=True),
    Column("parent_id", Text, nullable=True),  # the execution of which a node started this one
    Column("parent_node", Text, nullable=True),
    Column("root_id", Text, nullable=True),  # the execution that all of them began with
    Column("is_awaited", Boolean, nullable=True),  # a node waits for its end
    Column("mode", Text, nullable=False, server_default="MANUAL"),  # Flyte's word: who or what began it
    Column("is_removed", Boolean, nullable=False, server_default=false()),  # its rows are being removed in pieces
    Column("cluster", Text, nullable=False, server_default=""),  # of all of its nodes; empty: none yet, or each its own
    Column("pool", Text, nullable=False, server_default=""),  # that bounds it, by its spec or a rule
    Column("label", Text, nullable=False, server_default=""),
    Column("descendants", BigInteger, nullable=False, server_default="0"),  # executions that began with it, in all
    Column("error_kind", Text, nullable=True),  # USER or SYSTEM, for filters; as the code, it is in `error` too
    Column("error_code", Text, nullable=True),
    # Steps in a row that began and did not end: they failed, or the server was killed meanwhile.
    Column("unfinished_steps", Integer, nullable=False, server_default="0"),
)
Index("uq_executions_name", executions.c.project, executions.c.domain, executions.c.name, unique=True)
Index("ix_executions_created", executions.c.project, executions.c.domain, executions.c.created_us)
_index_where("ix_executions_due", executions.c.id, DUE_EXECUTION)
for _column in (executions.c.owner_id, executions.c.project):  # live executions are counted before a new one
    _index_where(f"ix_executions_live_{_column.name}", _column, LIVE_EXECUTION)
_index_where("ix_executions_ended", executions.c.ended_us, ENDED_EXECUTION)

_index_where("ix_executions_awaited", executions.c.parent_id, AWAITED_EXECUTION)
_index_where("ix_executions_root", executions.c.root_id, AWAITED_EXECUTION)

# What executions are found by: their tags, and their labels. Written with the execution.
execution_tags = Table(
    "execution_tags",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),  # tag or label
    Column("key", Text, primary_key=True),  # the tag itself, or the key of a label
    Column("value", Text, nullable=False),  # of a label
)

# One row per node that has begun or was skipped. Nodes inside others have the id of the outer node in front.
execution_nodes = Table(
    "execution_nodes",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("parent_id", Text, nullable=False),  # empty: at the top
    Column("spec_id", Text, nullable=False),  # its id in the compiled workflow
    Column("is_parent", Boolean, nullable=False),  # other nodes run inside it
    Column("is_array", Boolean, nullable=True),  # it is a map
    Column("cache_status", Text, nullable=True),
    Column("cache_key", LargeBinary, nullable=True),
    Column("cache_source", Text, nullable=True),
    Column("phase", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("user_failures", Integer, nullable=False),
    Column("system_failures", Integer, nullable=False),
    Column("inputs", LargeBinary, nullable=True),
    Column("outputs", LargeBinary, nullable=True),
    Column("error", LargeBinary, nullable=True),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger, nullable=True),
    Column("wake_us", BigInteger, nullable=True),  # when the engine must look at it; only while it runs
    Column("signal_id", Text, nullable=False, server_default=""),  # what a gate waits for
)
_index_where("ix_execution_nodes_wake", execution_nodes.c.wake_us, WAKING_NODE)

# What the gates of an execution wait for: an approval or a value from a person.
execution_signals = Table(
    "execution_signals",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("signal_id", Text, primary_key=True),
    Column("type", LargeBinary, nullable=False),
    Column("value", LargeBinary, nullable=True),  # nobody has given one yet
    Column("created_us", BigInteger, nullable=False),
    Column("set_us", BigInteger, nullable=True),
    Column("set_by", Text, nullable=False),
)

# One row per attempt of a dynamic task that made a workflow.
execution_dynamics = Table(
    "execution_dynamics",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("closure", LargeBinary, nullable=False),  # compiled, with the templates of its tasks
)

# One row per job of a node.
execution_attempts = Table(
    "execution_attempts",
    metadata,
    Column("execution_id", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("task_project", Text, nullable=False),
    Column("task_domain", Text, nullable=False),
    Column("task_name", Text, nullable=False),
    Column("task_version", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("error", LargeBinary, nullable=True),
    Column("created_us", BigInteger, nullable=False),
    Column("started_us", BigInteger, nullable=True),
    Column("ended_us", BigInteger, nullable=True),
)
_index_where("ix_execution_attempts_live", execution_attempts.c.job_id, LIVE_ATTEMPT)

# One row per active launch plan with a schedule.
schedules = Table(
    "schedules",
    metadata,
    Column("project", Text, primary_key=True),
    Column("domain", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("owner", Text, nullable=False),  # who made the plan active: the executions are theirs
    Column("owner_id", Text, nullable=False),
    Column("since_us", BigInteger, nullable=False),  # when it became active: rates count from there
    Column("last_us", BigInteger, nullable=True),  # the last time that was due
    Column("next_us", BigInteger, nullable=False),  # the next one; 0: to be computed
    Column("error", Text, nullable=False),  # why the last execution was not created; empty: it was
)
Index("ix_schedules_next", schedules.c.next_us)

# Files that Flyte's clients uploaded: bundles of code. A path never gets another content.
data_files = Table(
    "data_files",
    metadata,
    Column("project", Text, primary_key=True),
    Column("domain", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("md5", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("tree", LargeBinary, nullable=False),  # a tree with this one file
    Column("owner_id", Text, nullable=False),
    Column("stored_us", BigInteger, nullable=False),
)

# Addresses that were given out: each reads or writes one file, for a bounded time.
data_grants = Table(
    "data_grants",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("verb", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("md5", LargeBinary, nullable=False),  # empty: any content
    Column("owner_id", Text, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)
Index("ix_data_grants_expires", data_grants.c.expires_us)


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
_index_where("ix_execution_maps_live", execution_maps.c.execution_id, LIVE_MAP)

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
