"""The tables of files: stored objects, who may use them, sealed trees, references of jobs, and outputs of attempts.

Hashes are bytes here and not text: a tree may have a million of them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text, text

from switchyard.store.engine.metadata import metadata

# All objects that the store has, whoever sent them. `used_us` counts for objects that nobody holds.
file_objects = Table(
    "file_objects",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("used_us", BigInteger, nullable=False),
)

# A user who sent an object, or whose job made it, holds it: this user may name it in a tree.
file_holders = Table(
    "file_holders",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("owner", Text, primary_key=True),  # a user's id
    Column("used_us", BigInteger, nullable=False),
)
Index("ix_file_holders_owner", file_holders.c.owner, file_holders.c.digest)  # what one user holds, by hash

file_trees = Table(
    "file_trees",
    metadata,
    Column("root", LargeBinary, primary_key=True),
    Column("files", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("indexes", Text, nullable=False),  # the folders at its top whose names are numbers, as indexes of an array
    Column("sealed_us", BigInteger, nullable=False),
)

# A user who sealed a tree may submit jobs with it.
file_tree_owners = Table(
    "file_tree_owners",
    metadata,
    Column("root", LargeBinary, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("used_us", BigInteger, nullable=False),
)
Index("ix_file_tree_owners_owner", file_tree_owners.c.owner)
Index("ix_file_tree_owners_used", file_tree_owners.c.used_us)

# The hashes of all objects of a tree, sorted, some thousand in a row: a row for each would make a seal far slower.
file_tree_parts = Table(
    "file_tree_parts",
    metadata,
    Column("root", LargeBinary, primary_key=True),
    Column("first", LargeBinary, primary_key=True),
    Column("last", LargeBinary, nullable=False),
    Column("digests", LargeBinary, nullable=False),
)

# The trees that a job needs: `in` of its spec, `out` of its attempts. A tree with such a row is never removed.
file_refs = Table(
    "file_refs",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("root", LargeBinary, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("project", Text, nullable=False),
)
Index("ix_file_refs_root", file_refs.c.root)
Index("ix_file_refs_project", file_refs.c.project, file_refs.c.root)

file_outputs = Table(
    "file_outputs",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("task", Integer, nullable=True),  # of an array
    Column("cluster_id", Text, nullable=True),
    Column("state", Text, nullable=False),
    Column("root", LargeBinary, nullable=True),
    Column("files", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("missing", Text, nullable=False),
    Column("skipped", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("agent_id", Text, nullable=True),  # who has the files while they are on their way
    Column("retry_until_us", BigInteger, nullable=True),  # how long the agent tries to send files that did not fit
)
Index("ix_file_outputs_task", file_outputs.c.job_id, file_outputs.c.task)
UPLOADING = "state = 'uploading'"
UNSENT = "(state = 'uploading' OR retry_until_us IS NOT NULL)"
Index(
    "ix_file_outputs_unsent",
    file_outputs.c.cluster_id,
    file_outputs.c.agent_id,
    sqlite_where=text(UNSENT),
    postgresql_where=text(UNSENT),
)

# Objects that an agent has sent for an attempt, and trees (`is_sealed`) that were sealed for it. An attempt may name
# these and its inputs. The leader removes old rows: an attempt that still needs an object sends it again.
file_attempt_uploads = Table(
    "file_attempt_uploads",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("is_sealed", Boolean, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)
Index("ix_file_attempt_uploads_at", file_attempt_uploads.c.at_us)

# Objects that the leader removes from the store. A row stays for a while after that, because an upload that found the
# object in the store before may be stored in the database only now.
file_removals = Table(
    "file_removals",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("is_done", Boolean, nullable=False),
)

# Objects that the store has lost: a read did not find them, or found them damaged. Until somebody sends such an object
# again, nobody is told that it is there. Its other rows stay, so trees and jobs that need it are whole after that.
file_losses = Table(
    "file_losses",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
)

# How many bytes the objects take that a user holds. `released_us`: when unused objects were last taken from the user.
file_usage = Table(
    "file_usage",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("released_us", BigInteger, nullable=True),
)
