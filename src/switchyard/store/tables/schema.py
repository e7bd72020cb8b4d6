"""The tables of jobs. Times are integers (µs, UTC), ids sortable text, documents JSON text: no database type leaks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, text

from switchyard.model.job.blocker import Blocker
from switchyard.model.job.event_kind import TASK_PREFIX
from switchyard.store.engine.metadata import metadata

# SQLite uses a partial index only where the query says the same words, so these texts are shared with the queries.
READY = "is_ready"
SPREAD = "is_ready AND spread IS NOT NULL"  # arrays that several clusters may lease
LEASED = "agent_id IS NOT NULL AND state IN ('ASSIGNED', 'SUBMITTED', 'RUNNING')"
CANCELLING = "cancel_us IS NOT NULL AND agent_id IS NOT NULL AND state IN ('ASSIGNED', 'SUBMITTED', 'RUNNING')"
ROUTABLE = "state = 'PENDING' AND blocked IS NULL"
HAS_WAKE_TIME = "wake_us IS NOT NULL"
EXPIRING = "expires_us IS NOT NULL"
HAS_LATE_TIME = "late_from_us IS NOT NULL"
IN_CONCURRENCY_GROUP = "crowd IS NOT NULL AND ended_us IS NULL"
PARKED = "crowd IS NOT NULL AND NOT is_ready AND agent_id IS NULL AND state IN ('ASSIGNED', 'RUNNING')"
LIVE_RANGE = "is_live"
TASK_EVENT = f"substr(kind, 1, {len(TASK_PREFIX)}) = '{TASK_PREFIX}'"  # events about one task of an array
# Assigned and not ready: leased, parked, or an array that may lease no more tasks for now. Worded differently from
# PARKED, or PostgreSQL would confuse the two indexes.
ASSIGNED_NOT_READY = "NOT is_ready AND ended_us IS NULL AND state <> 'PENDING'"
# Jobs that wait only for a place in a limited queue; and arrays that have places in one.
QUEUED = f"state = 'PENDING' AND blocked = '{Blocker.QUEUE}'"
ARRAY_WITH_PLACES = "places IS NOT NULL AND todo IS NOT NULL AND ended_us IS NULL"  # only arrays have a `todo`
# PENDING and blocked by something other than the queue: the router skips these jobs.
BLOCKED = f"state = 'PENDING' AND blocked IS NOT NULL AND blocked <> '{Blocker.QUEUE}'"
NEEDS_TOKENS = "tokens IS NOT NULL AND ended_us IS NULL"
NOT_FINAL = "state IN ('PENDING', 'ASSIGNED', 'SUBMITTED', 'RUNNING')"
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED")
LIVE_ARRAY = "tasks_live IS NOT NULL AND ended_us IS NULL"  # differs from ix_jobs_placed: SQLite would confuse them

# Specs are shared by many jobs. There is no foreign key: it would need an index on `jobs`, which makes each insert a
# sixth slower. `used_us`: when a new job last used the spec; retention keeps recently used specs.
specs = Table(
    "specs",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("used_us", BigInteger, nullable=False),
)

verdict_sets = Table(
    "verdict_sets",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("used_us", BigInteger, nullable=False),
)

# One row per job. It also holds the current attempt, the hash of the plan and the `accepted` event (created_us, seq),
# so a job that is decided on arrival costs one row.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),  # the name, as it is shown
    Column("owner_id", Text, nullable=True),  # the user's id; NULL: the user was deleted
    Column("project", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("workflow", Text, nullable=True),
    Column("launch_plan", Text, nullable=True),
    Column("lane", Text, nullable=False),  # queue and project, and the backends if only some may run the job
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("arrival", Text, nullable=True),  # why it was pending on arrival; `reason` is the present reason
    Column("priority", Integer, nullable=False),
    Column("labels", Text, nullable=False),
    Column("spec_hash", Text, nullable=False),
    Column("bounds", Text, nullable=False),  # which clusters the request allows, for later decisions
    Column("plan_hash", Text, nullable=True),
    Column("policy_hash", Text, nullable=True),  # the rules it was admitted under
    Column("cores", BigInteger, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("on_lost", Text, nullable=False),
    Column("lost_after_s", Integer, nullable=True),
    Column("cluster_id", Text, nullable=True),
    Column("agent_id", Text, nullable=True),  # who leased the current attempt
    Column("attempt", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    # After a restore: the next fence is also above the floor; fences from `known` to the floor may have been given out.
    Column("fence_floor", BigInteger, nullable=True),
    Column("fence_known", BigInteger, nullable=True),
    Column("native_id", Text, nullable=True),
    Column("exit_code", Integer, nullable=True),
    Column("signal", Integer, nullable=True),
    Column("usage", Text, nullable=True),  # the resources it used, as its cluster reported them
    Column("created_us", BigInteger, nullable=False),
    Column("assigned_us", BigInteger, nullable=True),
    Column("leased_us", BigInteger, nullable=True),
    Column("started_us", BigInteger, nullable=True),
    Column("ended_us", BigInteger, nullable=True),
    Column("cancel_us", BigInteger, nullable=True),
    # May be leased now: assigned and not leased, or an array with tasks left and its bound not reached.
    Column("is_ready", Boolean, nullable=False),
    # Why the router skips a PENDING job: hold · after · backoff · queue · quotes · unreadable, joined by commas.
    Column("blocked", Text, nullable=True),
    Column("wake_us", BigInteger, nullable=True),  # when a back-off is over
    Column("expires_us", BigInteger, nullable=True),  # when it is too late to begin
    Column(
        "late_from_us", BigInteger, nullable=True
    ),  # when its queueing budget is spent; NULL: started, or reported late
    Column("late_us", BigInteger, nullable=True),  # when it was reported late
    Column("waits_us", BigInteger, nullable=True),  # since when it waits for a cluster; NULL: since its submit
    # The concurrency group of the job, and how many jobs of it may run at once.
    Column("crowd", Text, nullable=True),
    Column("crowd_max", Integer, nullable=True),
    # The places that the job has in its limited queue. Of an array: how many of its tasks may be live at once.
    Column("places", Integer, nullable=True),
    Column("tokens", Text, nullable=True),  # the tokens it needs: it holds them from its assignment to its end
    Column("tries", Integer, nullable=False),  # retries granted so far
    Column("retries", Integer, nullable=False),  # retries allowed in all
    Column("avoid", Text, nullable=True),  # clusters to try last, with the reason
    Column("retry_of", Text, nullable=True),
    # An array: all indexes, how many tasks may run at once, indexes not leased yet, indexes that wait for a retry, and
    # the number of the other tasks by state. The tasks themselves are in `ranges`.
    Column("array", Text, nullable=True),
    Column("array_max", Integer, nullable=True),
    Column("todo", Text, nullable=True),
    Column("later", Text, nullable=True),
    Column("tasks_live", Integer, nullable=True),
    Column("tasks_ok", Integer, nullable=True),
    Column("tasks_failed", Integer, nullable=True),
    Column("tasks_cancelled", Integer, nullable=True),
    # The ids of the clusters that may lease tasks of the array, joined by commas; NULL: its own cluster alone. And the
    # tasks that each of these clusters leaves to the others, because it gave them back or lost them.
    Column("spread", Text, nullable=True),
    Column("task_avoid", Text, nullable=True),
    Column("failure", Text, nullable=True),  # of a FAILED job: the kind of its last failure
    Column("retried", Text, nullable=True),  # retries after failures that its policy has rules for, by kind
    # Of a job with alternatives: the number of its set at each cluster that may lease it, by id, as JSON. The columns
    # `cores`, `gpus` and `memory_bytes` are those of its own cluster's set; before there is one, the largest.
    Column("alternatives", Text, nullable=True),
)
Index("ix_jobs_seq", jobs.c.seq)
Index("ix_jobs_live", jobs.c.owner, sqlite_where=text(NOT_FINAL), postgresql_where=text(NOT_FINAL))
Index("ix_jobs_arrays", jobs.c.owner, sqlite_where=text(LIVE_ARRAY), postgresql_where=text(LIVE_ARRAY))
Index("ix_jobs_due", jobs.c.wake_us, sqlite_where=text(HAS_WAKE_TIME), postgresql_where=text(HAS_WAKE_TIME))
Index("ix_jobs_tokens", jobs.c.id, sqlite_where=text(NEEDS_TOKENS), postgresql_where=text(NEEDS_TOKENS))
Index("ix_jobs_late", jobs.c.late_from_us, sqlite_where=text(HAS_LATE_TIME), postgresql_where=text(HAS_LATE_TIME))
Index(
    "ix_jobs_crowd",
    jobs.c.crowd,
    jobs.c.agent_id,
    jobs.c.tasks_live,
    sqlite_where=text(IN_CONCURRENCY_GROUP),
    postgresql_where=text(IN_CONCURRENCY_GROUP),
)
Index(
    "ix_jobs_parked",
    jobs.c.crowd,
    jobs.c.priority.desc(),
    jobs.c.id,
    sqlite_where=text(PARKED),
    postgresql_where=text(PARKED),
)
Index(
    "ix_jobs_busy",
    jobs.c.lane,
    jobs.c.agent_id,
    jobs.c.cores,
    sqlite_where=text(ASSIGNED_NOT_READY),
    postgresql_where=text(ASSIGNED_NOT_READY),
)
Index(
    "ix_jobs_queued",
    jobs.c.lane,
    jobs.c.priority.desc(),
    jobs.c.id,
    sqlite_where=text(QUEUED),
    postgresql_where=text(QUEUED),
)
Index("ix_jobs_stopped", jobs.c.blocked, sqlite_where=text(BLOCKED), postgresql_where=text(BLOCKED))
Index("ix_jobs_placed", jobs.c.lane, sqlite_where=text(ARRAY_WITH_PLACES), postgresql_where=text(ARRAY_WITH_PLACES))
Index("ix_jobs_expiring", jobs.c.expires_us, sqlite_where=text(EXPIRING), postgresql_where=text(EXPIRING))
Index(
    "ix_jobs_ready",
    jobs.c.cluster_id,
    jobs.c.lane,
    jobs.c.priority.desc(),
    jobs.c.id,
    sqlite_where=text(READY),
    postgresql_where=text(READY),
)
Index(
    "ix_jobs_spread",
    jobs.c.lane,
    jobs.c.priority.desc(),
    jobs.c.id,
    sqlite_where=text(SPREAD),
    postgresql_where=text(SPREAD),
)
Index("ix_jobs_held", jobs.c.agent_id, sqlite_where=text(LEASED), postgresql_where=text(LEASED))
# The second column is for SQLite's planner alone: of two partial indexes on the same column it may take the longer one.
Index(
    "ix_jobs_cancelling",
    jobs.c.agent_id,
    jobs.c.cancel_us,
    sqlite_where=text(CANCELLING),
    postgresql_where=text(CANCELLING),
)
Index("ix_jobs_waiting", jobs.c.id, sqlite_where=text(ROUTABLE), postgresql_where=text(ROUTABLE))

# Consecutive tasks of an array that were leased together: task `lo + i` runs under the fence `fence + i`. `tasks` has
# two bytes per task: its state and its exit code.
ranges = Table(
    "ranges",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("lo", Integer, nullable=False),
    Column("hi", Integer, nullable=False),
    Column("cluster_id", Text, nullable=True),
    Column("agent_id", Text, nullable=True),
    Column("tasks", LargeBinary, nullable=False),
    Column("is_live", Boolean, nullable=False),
    Column("is_cancelling", Boolean, nullable=False),
    Column("leased_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger, nullable=True),
    Column("alternative", Integer, nullable=True),  # the number of the set that these tasks were leased with
)
Index("ix_ranges_live", ranges.c.agent_id, sqlite_where=text(LIVE_RANGE), postgresql_where=text(LIVE_RANGE))

# A job waits for the end of another job: `ok`, `any` or `notok`. The row is deleted when the other job ends.
dependencies = Table(
    "dependencies",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("on_id", Text, primary_key=True),
    Column("condition", Text, nullable=False),
)
Index("ix_dependencies_on", dependencies.c.on_id)

# Attempts that ended while their job went on. Of an array: its assignments to clusters that ended. The fence of such a
# row is the one that a task got last; where the attempt with this fence ran is in `ranges`.
attempts = Table(
    "attempts",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("cluster_id", Text, nullable=True),
    Column("agent_id", Text, nullable=True),
    Column("native_id", Text, nullable=True),
    Column("ended", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("assigned_us", BigInteger, nullable=True),
    Column("leased_us", BigInteger, nullable=True),
    Column("started_us", BigInteger, nullable=True),
    Column("ended_us", BigInteger, nullable=False),
    Column("alternative", Integer, nullable=True),  # the number of its set, of a job with alternatives
    Column("usage", Text, nullable=True),
    Column("failure", Text, nullable=True),  # the kind of its failure
    Column("asked", Text, nullable=True),  # what it asked for, if a retry of the job asks for more
)

# Attempts that failed, for statistics: those of jobs and of tasks, whether they were retried or not.
failures = Table(
    "failures",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("cluster_id", Text, nullable=True),
    Column("nodes", Text, nullable=False),  # as its cluster reported them; empty: it did not
    Column("owner", Text, nullable=False),
    Column("owner_id", Text, nullable=True),
    Column("project", Text, nullable=False),
)
Index("ix_failures_at", failures.c.at_us)

events = Table(
    "events",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_us", BigInteger, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("cluster_id", Text, nullable=True),
    Column("reason", Text, nullable=False),
)
Index("ix_events_job", events.c.job_id, events.c.seq)
Index(
    "ix_events_task",
    events.c.job_id,
    events.c.fence,
    sqlite_where=text(TASK_EVENT),
    postgresql_where=text(TASK_EVENT),
)

output = Table(
    "output",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("fence", BigInteger, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("offset", BigInteger, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", Text, primary_key=True),  # as jobs.owner_id
    Column("key", Text, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)
Index("ix_idempotency_created", idempotency.c.created_us)

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("full_name", Text, nullable=False),
    Column("groups", Text, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id"), nullable=False),
    Column("hash", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=True),
    Column("last_used_us", BigInteger, nullable=True),
    Column("revoked_us", BigInteger, nullable=True),
    Column("parent_id", Text, nullable=True),  # the token that this one was made with: they are revoked together
)

grants = Table(
    "grants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("to_kind", Text, nullable=False),
    Column("subject", Text, nullable=False),  # a user's id, else a name
    Column("on_kind", Text, nullable=False),
    Column("object", Text, nullable=False),  # a cluster's id, else a name
    Column("created_us", BigInteger, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("object", Text, nullable=False),
    Column("before", Text, nullable=True),
    Column("after", Text, nullable=True),
)
Index("ix_audit_object", audit.c.object, audit.c.id)

# `events` numbers events and jobs; `clusters`, `access`, `policy`, `layout` and `tokens` are versions of the snapshots
# in memory; `amnesty_us` is a time (store/engine/clock_jumps.py).
counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

leaders = Table(
    "leaders",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)


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
