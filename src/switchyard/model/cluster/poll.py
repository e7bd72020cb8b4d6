"""The agent's protocol: join once, then poll. One message carries everything both ways, and no wall clock."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Raw, Struct

from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.quote import QUOTES_MAX, QuoteAsk, QuoteGiven
from switchyard.model.files.file_views import FileAsk
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.log import OUTPUT_BYTES_MAX
from switchyard.model.job.retry import Cause
from switchyard.model.rules.names import Name

BATCH_MAX = 1000
AVOIDED_NODES_SHARE = 4  # at most one in so many nodes is avoided: beyond, it is the cluster that is at fault
BASE64_PATTERN = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?(?!\n)$"
CHUNK_BYTES_MAX = 256 * 1024
UNBEGUN_MAX = 10_000
OUTPUT_CHUNKS_MAX = 64  # in one poll
AgentText = Annotated[str, Meta(max_length=4096)]
# In each call of an agent: the incarnation of the process that calls, as in its polls.
INCARNATION_HEADER = "Yard-Incarnation"
OPAQUE_ID_CHARS_MAX = 64
OPAQUE_ID_PATTERN = r"^[0-9A-Za-z_-]+(?!\n)$"
OpaqueId = Annotated[str, Meta(min_length=1, max_length=OPAQUE_ID_CHARS_MAX, pattern=OPAQUE_ID_PATTERN)]
ReportedJobId = Annotated[str, Meta(min_length=26, max_length=26, pattern=r"^[0-9A-Z]{26}(?!\n)$")]
Fence = Annotated[int, Meta(ge=0, le=2**63 - 1)]
JournalCounter = Annotated[int, Meta(ge=0, le=2**63 - 1)]
EVENT_MARK_CHARS_MAX = 64
EventMark = Annotated[str, Meta(max_length=EVENT_MARK_CHARS_MAX, pattern=r"^([0-9]{1,19}\.[0-9a-f]{1,44})?(?!\n)$")]


class Join(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`POST /v1/agents/join`. The join token travels as the bearer; `journal` is the identity of the agent's disk."""

    cluster: Name
    name: Name
    journal: OpaqueId
    backend: Name
    version: AgentText = ""
    is_ephemeral: bool = False  # the cluster leaves when its time is over; it must have been invited so
    proof: OpaqueId | None = None  # of a pilot: the secret behind the line in its job's output


def proof_line(proof: str) -> str:
    """The line that a pilot's agent writes into its job's output. It has the hash, so that no reader has the proof."""
    return f"switchyard join proof {sha256(proof.encode()).hexdigest()}"


class Joined(Struct, frozen=True):
    """The agent's own credential, shown once."""

    agent: str
    cluster: str
    credential: str


class Rotate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`POST /v1/agents/rotate`. Agents name the process that began the session; clusters that only poll name none."""

    incarnation: OpaqueId | None = None


class Rotated(Struct, frozen=True):
    """`POST /v1/agents/rotate`: the next credential, shown once. Its first use ends the one that asked for it."""

    credential: str


class UnbegunAttempt(Struct, frozen=True, forbid_unknown_fields=True):
    """An attempt whose command has not begun, and never will."""

    job: ReportedJobId
    fence: Fence


class Leave(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`POST /v1/agents/leave`: the agent of an ephemeral cluster has ended its work. It names its process.

    `is_over`: the cluster ends now, and what runs in it ends with it. Jobs of the agent are lost for this `reason`, but
    for those that have not begun.
    """

    incarnation: OpaqueId
    is_over: bool = False
    reason: AgentText = ""
    unbegun: Annotated[list[UnbegunAttempt], Meta(max_length=UNBEGUN_MAX)] = []


class Left(Struct, frozen=True):
    """The agent is removed; `is_cluster_removed`: it was the last one, and its cluster is gone, too."""

    agent: str
    cluster: str
    is_cluster_removed: bool


class AttemptRef(Struct, frozen=True, forbid_unknown_fields=True, array_like=False):
    """An attempt that an agent has."""

    job: ReportedJobId
    fence: Fence


class Report(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state of one attempt that the agent saw, and its age. An age, not a time: clocks may be wrong."""

    job: ReportedJobId
    fence: Fence
    seen: ObservedState
    ago_us: Annotated[int, Meta(ge=0, le=10 * 366 * 86_400_000_000)] = 0
    native_id: AgentText | None = None
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    signal: Annotated[int, Meta(ge=0, le=255)] | None = None
    reason: AgentText = ""
    cause: Cause = Cause.JOB  # of a failure
    usage: Usage | None = None  # of an end, and of a start what the cluster gave
    # The kind of a failure (`FailureKind`). An unknown word, of a newer agent, says nothing.
    failure: Annotated[str, Meta(max_length=40)] | None = None


class OutputChunk(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of an attempt's output at an offset. Sending the same chunk again changes nothing."""

    job: ReportedJobId
    fence: Fence
    stream: Annotated[str, Meta(pattern=r"^(stdout|stderr)(?!\n)$")]
    offset: Annotated[int, Meta(ge=0, le=2**62)]
    data: Annotated[bytes, Meta(max_length=CHUNK_BYTES_MAX, extra_json_schema={"pattern": BASE64_PATTERN})]


class Room(Struct, frozen=True, forbid_unknown_fields=True):
    """The free resources of the agent. Jobs are leased in order while they fit."""

    cores: Annotated[int, Meta(ge=0)]
    gpus: Annotated[int, Meta(ge=0)] = 0
    memory_bytes: Annotated[int, Meta(ge=0)] = 0


class Origin(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The process and the journal that begin a session. Every sync names them.

    `start` is one more than the starts on this journal that the server has accepted, `found` is the journal's count of
    writes when this process opened it; only writes of accepted processes count. Both only grow, so a copy of the
    journal, or one from a backup, is known by a number the server has seen.
    """

    journal: OpaqueId
    start: JournalCounter
    found: JournalCounter = 0
    is_rebuilt: bool = False  # the journal was damaged and is a new one: `found` says nothing
    place: AgentText = ""  # host, folder and process, for people to read


class Poll(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`POST /v1/agents/poll`.

    `incarnation` is new at each start: the word of the agent's claim (`journal.py`), `-`, and a word of the
    process. Only the process that began the agent's session is listened to. `session` is the number of the last sync; a
    poll with `inventory` (at each start, and after any answer that may have been lost) is a sync: the answer then has
    every lease the agent does not know of, and every attempt it should stop. `wait_s` parks the poll until there is
    something. `writes` is the journal's count of writes so far: a later process that finds fewer has an outdated copy
    of the journal. `event_mark` is the newest of the answers so far: a server whose database does not know it any more
    was turned back.
    """

    incarnation: OpaqueId
    session: Annotated[int, Meta(ge=0)] = 0
    writes: JournalCounter = 0
    event_mark: EventMark = ""
    origin: Origin | None = None
    wait_s: Annotated[float, Meta(ge=0, le=300)] = 0
    want: Annotated[int, Meta(ge=0, le=BATCH_MAX)] = 0
    room: Room | None = None
    load: Load | None = None
    graph: Graph | None = None
    inventory: Annotated[list[AttemptRef], Meta(max_length=100_000)] | None = None
    cancelling: Annotated[list[AttemptRef], Meta(max_length=100_000)] = []
    reports: Annotated[list[Report], Meta(max_length=BATCH_MAX)] = []
    output: Annotated[list[OutputChunk], Meta(max_length=OUTPUT_CHUNKS_MAX)] = []
    quotes: Annotated[list[QuoteGiven], Meta(max_length=QUOTES_MAX)] = []


class Lease(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The right to run one attempt; of an array, one per index from `lo` to `hi`, with fences counted from `fence`."""

    job: str
    attempt: int
    fence: int
    name: str
    owner: str
    is_owner_admin: bool = False  # the owner administers the platform: an agent of root's starts their jobs unmapped
    project: str
    domain: str
    workflow: str | None = None
    launch_plan: str | None = None
    priority: int = 0
    labels: dict[str, str] = {}
    cluster: str = ""
    queue: str = ""
    native_queue: str | None = None  # what the cluster's batch system calls the job's queue; none: its own default
    avoid_nodes: list[str] = []  # on which tasks of this owner failed quickly, and not on others
    lo: int | None = None
    hi: int | None = None
    known: int | None = None  # the server was restored: what ran from this fence up to the lease's own it does not know
    spec: JobSpec | Raw


class Stop(Struct, frozen=True):
    """The attempt no longer belongs to this agent. The agent must end it and report nothing further."""

    job: str
    fence: int
    why: str


class PollAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`answers` has one entry per report, in order. Any of them settles its report."""

    session: int
    leases: list[Lease] = []
    cancels: list[AttemptRef] = []
    stops: list[Stop] = []
    answers: list[ReportAnswer] = []
    quotes: list[QuoteAsk] = []  # each once: the next poll may wait while it is thought of
    files: list[FileAsk] = []  # somebody looks at these files of attempts; answered by `POST /v1/agents/files/views`
    output_bytes_max: int = OUTPUT_BYTES_MAX  # of each stream of an attempt; more is not kept, so need not be sent
    # Version of the objects of all namespaces (`GET /v1/agents/cluster-resources`). Only for agents of Kubernetes.
    cluster_resources: str = ""
    is_rotation_asked: bool = False  # an operator wants this agent to have a new credential
    # An operator has set the cluster's graph: what the agent finds on the cluster keeps no job from starting.
    is_graph_by_operator: bool = False
    is_closing: bool = False  # this server is going away: reconnect, after a moment of your own
    event_mark: str = ""  # the number of the last event, with a signature; comes back with every poll
    # Reports may say what the cluster gave, and the kind of a failure: older servers refuse such reports.
    takes_details: bool = False
