"""The page of limits in docs/reference: every number is read from the code, so that the page stays true."""

from __future__ import annotations

import importlib
import typing
from typing import Any

from msgspec import Meta

REFUSED = "413 `too-large`"
MALFORMED = "400 `malformed`"
BAD = "400 `bad-request`"
BUSY = "429 `busy`"
CODE = "the code"

INTRODUCTION = """\
What there is a bound on, its value, and what happens at it. First what one user may have, which an operator can
change; then the bounds of the server, of a job and of the rest.

## What one user may have

The section `limits` of the [server's config file](config.md#limits) sets these for all users, and `limits.users` for
users by name. `0` means no limit; `burst` is at least 1. The defaults are chosen so that no honest user meets them.

```yaml
limits:
  jobs: 20000
  users:
    nightly-builds: {jobs: 500000, bytes: 1TiB}
    rainbow: {requests: 0}
```

A request over a limit is refused with status 429. The problem's `limit` has the limit's name, its `detail` the value,
what the user has now, and where the limit is set. The code is `throttled` where time cures it, and `Retry-After` says
when to come back; the command line and the SDK then wait and try again by themselves. It is `limit-reached` where the
user has to free something first: nothing tries again by itself. gRPC answers `RESOURCE_EXHAUSTED` with the same
words.
"""

AFTER_USERS = """
- **Counted by each server:** `waits`, `streams`, `calls`, `requests`, `burst`, `changes`. A user of two servers may
  have twice as much.
- **Counted over all servers:** `jobs`, `tasks`, `bytes`. Each server asks the database for them, and between two
  questions, about a second, adds what it accepts itself. So a limit may be passed by what all servers accept within a
  second, and a job that ended counts for about a second more.
- **Stored bytes** count a job's spec even where several jobs share one. Over the limit, submits are refused, and
  output of the user's running jobs is left out; the jobs go on. What a server has not yet written down when it is
  killed, about a second's worth, is not counted. Graphs of clusters do not count: their bounds are below.
- **Recorded changes** are refused at the limit, and old audit rows stay: otherwise a user could hide a change behind a
  flood of others. Revoking a token or an invite, withdrawing a consent and deleting are never refused. Cancelling jobs
  does not count: each job is cancelled once.
- **Platform administrators** have none of these limits but `calls`: they set them. A server without authentication
  has one user, who is one. Take an ordinary user for programs.
- **Agents** are not users and have none of these limits but `calls`. What they may send is bounded below.
- **Rainbow's clients** count as the account of the submit token that they show, or together as the user `rainbow` if
  it names none.
- **More than {at_once} requests at once** of one user are not refused, but begin one by one, {pace} times as fast as
  `requests` says: others' requests come in between.
- **Threads:** users whose requests wait for a thread of the server take turns, and no user has all threads, whatever
  these limits say. Followers of one job by one user share each read of the database.
- **Bulk submits:** each 100 jobs count as one request more. Large writes of users take turns, and single writes go
  between them. One user has one bulk submit of over 1 MiB in work at a time; the others wait.
- **A refusal because of `requests` is sent after about a second**, so that a client that does not wait is slowed down
  all the same.
- `switchyard_limit_refusals_total` at `/metrics` counts refusals by limit. `decisions` and
  `bodies` are below.
"""

# What · where its value is · its unit · what happens at it · where it is set.
TABLES: dict[str, list[tuple[str, str, str, str, str]]] = {
    "The server": [
        ("body of a submit or a plan", "server.http.bodies.body_bounds:JOB_BODY.bytes_max", "bytes", REFUSED, CODE),
        ("body of a bulk submit", "server.http.bodies.body_bounds:BULK_BODY.bytes_max", "bytes", REFUSED, CODE),
        ("body of an agent's poll", "server.http.bodies.body_bounds:POLL_BODY.bytes_max", "bytes", REFUSED, CODE),
        (
            "body of a pool, a label, a queue or a rule",
            "server.http.bodies.body_bounds:LAYOUT_BODY.bytes_max",
            "bytes",
            REFUSED,
            CODE,
        ),
        ("body of any other request", "server.http.bodies.body_bounds:SMALL_BODY.bytes_max", "bytes", REFUSED, CODE),
        (
            "bodies over 64 KiB of one user or agent that have not arrived completely (limit `bodies`)",
            "server.http.bodies.body_budget:CALLER_BYTES_MAX",
            "bytes",
            "they wait, then 429 `throttled`",
            CODE,
        ),
        (
            "the same, waiting for room",
            "server.http.bodies.body_budget:CALLER_WAITING_MAX",
            "",
            "429 `throttled`",
            CODE,
        ),
        (
            "the same, of all users; of all agents as much again",
            "server.http.bodies.body_budget:USERS_BYTES_MAX",
            "bytes",
            "they wait, then 429 `busy`",
            CODE,
        ),
        (
            "the same, of one address, of callers without a credential",
            "server.http.bodies.body_budget:ADDRESS_BYTES_MAX",
            "bytes",
            "they wait, then 429 `throttled`",
            CODE,
        ),
        (
            "the same, of all callers without a credential",
            "server.http.bodies.body_budget:STRANGERS_BYTES_MAX",
            "bytes",
            "they wait, then 429 `busy`",
            CODE,
        ),
        (
            "how long such a body waits for room",
            "server.http.bodies.body_budget:WAIT_S",
            "s",
            "429",
            CODE,
        ),
        (
            "how long a body takes to arrive, at its pace",
            "server.http.bodies.body_bounds:BODY_S_MAX",
            "s",
            "408 `too-slow`, closed",
            CODE,
        ),
        ("nesting of any body", "model.wire.decode:NESTING_MAX", "levels", MALFORMED, CODE),
        ("values in a job", "server.http.bodies.body_bounds:JOB_BODY.values_max", "", REFUSED, CODE),
        (
            "message on the gRPC port",
            "server.grpc.grpc_intake:MESSAGE_BYTES_MAX",
            "bytes",
            "`RESOURCE_EXHAUSTED`",
            CODE,
        ),
        (
            "message with a graph on the gRPC port",
            "server.grpc.grpc_intake:GRAPH_MESSAGE_BYTES_MAX",
            "bytes",
            "`RESOURCE_EXHAUSTED`",
            CODE,
        ),
        ("calls on the gRPC port at once", "server.grpc.grpc_intake:CALLS_MAX", "", "`RESOURCE_EXHAUSTED`", CODE),
        (
            "messages over 64 KiB whose gRPC calls are not answered yet, together",
            "server.grpc.grpc_intake:WORK_BYTES_MAX",
            "bytes",
            "`RESOURCE_EXHAUSTED`",
            CODE,
        ),
        (
            "the same, of one address",
            "server.grpc.grpc_intake:ADDRESS_WORK_BYTES_MAX",
            "bytes",
            "`RESOURCE_EXHAUSTED`",
            CODE,
        ),
        (
            "messages with a graph whose gRPC calls are not answered yet, together; of one address half of it",
            "server.grpc.grpc_intake:GRAPH_WORK_BYTES_MAX",
            "bytes",
            "calls wait, then `RESOURCE_EXHAUSTED`",
            CODE,
        ),
        (
            "uploads of graphs at once; of one user or agent half of them",
            "server.config.settings:ServerBounds.uploads",
            "",
            BUSY,
            CODE,
        ),
        ("changes that wait for the database", "server.config.settings:ServerBounds.queue", "", BUSY, CODE),
        ("output that waits for the database", "service.core.writes.committer:DEFERRED_BYTES_MAX", "bytes", BUSY, CODE),
        (
            "decisions of one user that take long, waiting",
            "server.loops.workers:WAITING_DECISIONS_MAX",
            "",
            "429 `throttled`",
            CODE,
        ),
        ("live tokens of one user", "service.access.user_tokens:USER_TOKENS_MAX", "", "429 `limit-reached`", CODE),
        ("streams of events, of all users", "server.grpc.limiter:STREAMS_MAX", "", BUSY, CODE),
        ("worker threads", "server.config.settings:ServerBounds.threads", "", "requests wait in turn", CODE),
        ("how long a wait lasts", "server.config.settings:ServerBounds.wait_s", "s", "answered as it stands", CODE),
        (
            "how long an agent's poll is parked",
            "server.config.settings:ServerBounds.park_s",
            "s",
            "answered, and asked again",
            CODE,
        ),
        (
            "items on a page",
            "server.config.settings:ServerBounds.page",
            "",
            MALFORMED,
            "`limit` of the request, up to this",
        ),
        (
            "items on a page, unless asked for",
            "server.config.settings:ServerBounds.page_default",
            "",
            "`next` is given",
            "`limit`",
        ),
        ("jobs looked at for one page", "server.config.settings:ServerBounds.list_budget", "", "`next` is given", CODE),
        ("parameters of one request", "server.http.call:QUERY_FIELDS_MAX", "", MALFORMED, CODE),
        ("one parameter", "server.http.query_parameters:TEXT_CHARS_MAX", "characters", MALFORMED, CODE),
        ("output in one answer", "service.run.logs:ANSWER_BYTES_MAX", "bytes", "`next` is given", CODE),
        ("one chunk of a file", "model.files.file_tree:CHUNK_BYTES", "bytes", "400 `bad-value`", CODE),
        ("the list of one folder's files", "model.files.file_tree:TREE_BYTES_MAX", "bytes", MALFORMED, CODE),
        ("one upload of objects", "model.files.file_frames:BODY_BYTES_MAX", "bytes", REFUSED, CODE),
        ("files, folders and links of one tree", "model.files.file_tree:FILES_MAX", "", "400 `bad-value`", CODE),
        (
            "a file that is looked at, in one answer",
            "model.files.file_views:VIEW_BYTES_MAX",
            "bytes",
            "ask for more",
            CODE,
        ),
        ("the same, of one user in a second", "server.file_asks:BYTES_PER_S", "bytes", "it waits", CODE),
        (
            "files of one job that a user follows (limit `viewed_files`)",
            "server.file_asks:FILES_PER_JOB_MAX",
            "",
            "429 `limit-reached`",
            CODE,
        ),
        ("the same, of one user", "server.file_asks:FILES_PER_USER_MAX", "", "429 `limit-reached`", CODE),
    ],
    "A job": [
        ("words of a command", "model.job.job:JobSpec.command", "", MALFORMED, CODE),
        ("variables of the environment", "model.job.job:JobSpec.env", "", MALFORMED, CODE),
        ("one word, one value of a variable", "model.job.job:Word", "characters", MALFORMED, CODE),
        ("labels", "model.job.job:JobRequest.labels", "", MALFORMED, CODE),
        ("value of a label", "model.rules.names:LabelValue", "characters", MALFORMED, CODE),
        ("name of anything, key of a label", "model.rules.names:Name", "characters", MALFORMED, CODE),
        ("idempotency key", "model.rules.names:IdempotencyKey", "characters", MALFORMED, CODE),
        ("jobs it waits for (`after`)", "model.job.job:JobRequest.after", "", MALFORMED, CODE),
        ("clusters it names with a token", "model.job.job:JobRequest.clusters", "", MALFORMED, CODE),
        ("tasks of one array", "model.cluster.idset:TASKS_MAX", "", MALFORMED, CODE),
        ("highest index of a task", "model.cluster.idset:INDEX_MAX", "", MALFORMED, CODE),
        ("text of an array", "model.cluster.idset:TEXT_CHARS_MAX", "characters", MALFORMED, CODE),
        ("nodes, cores or GPUs it asks for", "model.job.job:COUNT_MAX", "", MALFORMED, CODE),
        ("retries", "model.job.retry:LIMIT_MAX", "", MALFORMED, CODE),
        ("any duration", "model.jobspec.quantity:DURATION_S_MAX", "s", MALFORMED, CODE),
        ("depth of a jobspec", "model.jobspec.tree:STRUCTURE_DEPTH_MAX", "levels", MALFORMED, CODE),
        ("token pools it holds tokens of", "model.rules.tokens:TOKENS_OF_JOB_MAX", "", MALFORMED, CODE),
        ("options of its selection", "model.cluster.selection:OPTIONS_BYTES_MAX", "bytes", MALFORMED, CODE),
        (
            "output kept of each stream",
            "model.job.log:OUTPUT_BYTES_MAX",
            "bytes",
            "the middle is left out",
            "`logs.bytes_max`",
        ),
        ("jobs in one bulk submit", "model.wire.api:BULK_JOBS_MAX", "", MALFORMED, CODE),
        (
            "jobs in one bulk submit without `each`, or with references (`#3`)",
            "model.wire.api:BULK_WHOLE_MAX",
            "",
            REFUSED,
            CODE,
        ),
        ("selections in one bulk submit", "service.submit.bulk:SELECTIONS_MAX", "", BAD, CODE),
        ("jobs changed by one round of a filter", "model.wire.api:SELECT_JOBS_MAX", "", "`cursor` is given", CODE),
    ],
    "Clusters, agents and rules": [
        (
            "space that input files leave free on an agent's disk: a tenth of the disk, and at most",
            "agent.files.inputs.staging_space:RESERVE_BYTES_MAX",
            "bytes",
            "the job waits, or is refused",
            "`files.reserve` of the site file",
        ),
        (
            "the same space, at least; an agent with less takes no jobs",
            "agent.loop.loop:FREE_BYTES_MIN",
            "bytes",
            "the job waits, or is refused",
            CODE,
        ),
        (
            "how long a job waits for that space, or for a file that the store has lost",
            "agent.files.inputs.stagings:PATIENCE_S",
            "s",
            "it goes to another cluster, or back",
            CODE,
        ),
        ("graph, unpacked", "server.config.settings:ServerBounds.graph_bytes", "bytes", REFUSED, CODE),
        ("graph, packed", "server.config.settings:ServerBounds.graph_packed_bytes", "bytes", REFUSED, CODE),
        ("graphs of one cluster", "service.cluster.graphs:SUBSYSTEMS_MAX", "", MALFORMED, CODE),
        ("graphs of one cluster, together", "service.cluster.graphs:SOURCES_BYTES_MAX", "bytes", MALFORMED, CODE),
        ("different shapes in a graph", "model.graph.graph:SHAPES_MAX", "", MALFORMED, CODE),
        ("depth of a graph", "model.graph.graph:GRAPH_DEPTH_MAX", "levels", MALFORMED, CODE),
        ("vertices of a graph as JGF", "model.graph.jgf:VERTICES_MAX", "", MALFORMED, CODE),
        ("values of a cluster's state", "service.core.agents.cluster_state:MANUAL_VALUES_MAX", "", BAD, CODE),
        ("reports in one poll", "model.cluster.poll:BATCH_MAX", "", MALFORMED, CODE),
        ("one piece of output in a poll", "model.cluster.poll:CHUNK_BYTES_MAX", "bytes", MALFORMED, CODE),
        ("clusters of one pool or label", "model.rules.layout:MEMBERS_MAX", "", MALFORMED, CODE),
        ("pools, labels and queues set at run time", "model.rules.layout:CLUSTER_SETS_MAX", "", BAD, CODE),
        ("token pools", "model.rules.tokens:POOLS_MAX", "", BAD, CODE),
        ("rows of attributes", "service.rules.attributes:ROWS_MAX", "", BAD, CODE),
        ("one attribute's value", "service.rules.attributes:VALUE_BYTES_MAX", "bytes", BAD, CODE),
        (
            "open inquiries for quotes of one cluster; each user has at most as many as are free",
            "service.reserve.inquiries:OPEN_INQUIRIES_MAX",
            "",
            "not asked: counts as no answer",
            CODE,
        ),
        ("a YAML file", "model.wire.decode:YAML_BYTES_MAX", "bytes", MALFORMED, CODE),
        ("depth of a YAML file", "model.wire.decode:YAML_DEPTH_MAX", "levels", MALFORMED, CODE),
    ],
}


def limits_page(made: str) -> str:
    from switchyard.policy.limits import IMMEDIATE_STARTS, LIMITS, PACE_FACTOR

    parts = ["# Limits\n", made, INTRODUCTION]
    parts += ["| limit | default | what it counts | counted by | at the limit | set by |", "|---|---|---|---|---|---|"]
    for limit in LIMITS.values():
        code = "429 `limit-reached`" if limit.retry_s is None else "429 `throttled`"
        default = _show(limit.default, "bytes" if limit.name == "bytes" else "")
        row = (f"`{limit.name}`", default, limit.counts, limit.counted, code, f"`limits.{limit.name}`")
        parts.append(f"| {' | '.join(row)} |")
    parts.append(AFTER_USERS.format(at_once=IMMEDIATE_STARTS, pace=PACE_FACTOR))
    for title, rows in TABLES.items():
        parts += [f"## {title}\n", "| what | the most | at the limit | set by |", "|---|---|---|---|"]
        parts += [f"| {what} | {_show(value_of(place), unit)} | {at} | {by} |" for what, place, unit, at, by in rows]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def value_of(place: str) -> Any:
    """The number at `module:NAME` or at a dataclass's `module:Class.field`; of a type or a struct's field its bound."""
    module, _, name = place.partition(":")
    loaded = importlib.import_module(f"switchyard.{module}")
    owner, _, field = name.partition(".")
    value = getattr(loaded, owner)
    if field:
        hints = typing.get_type_hints(value, include_extras=True)
        value = getattr(value, field) if hasattr(value, "__dataclass_fields__") else hints[field]
    if typing.get_origin(value) is typing.Annotated:
        return next(hint.max_length for hint in typing.get_args(value) if isinstance(hint, Meta))
    return value


def _show(value: Any, unit: str) -> str:
    if unit == "bytes":
        from switchyard.model.jobspec.quantity import show_bytes

        return show_bytes(value)
    number = f"{value:,.0f}" if isinstance(value, float) else f"{value:,}"
    return f"{number} {unit}".rstrip()
