"""A cluster: a registration with a graph (what it has), a state (how it is now), groups and agents."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.cluster.namespace_resources import NamespacePatterns
from switchyard.model.cluster.probation import Probation
from switchyard.model.cluster.quote import QuoteRecord
from switchyard.model.cluster.selection import VALUES_MAX, NamedValues, Scalar, StateValue, ValueName, refuse_infinite
from switchyard.model.graph.graph import FreeNodes
from switchyard.model.job.rival import Rival
from switchyard.model.rules.names import TEXT_PATTERN, LabelKey, LabelValue, Name, Title

Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=64)]
# Looser than a title: a poll must not be refused because of a file name in an error.
AgentText = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=256)]

# The backend of a cluster that has no agent of ours and only polls, as Rainbow's clients do: nobody hears its heart, so
# it counts as up until it is cordoned or deleted.
POLLING_BACKEND = "rainbow"


class Health(StrEnum):
    """Whether the cluster can get jobs now."""

    UP = "up"
    DOWN = "down"  # no live agent, no graph yet, or a batch system that does not answer
    PAUSED = "paused"  # every live agent was told to take nothing new
    CORDONED = "cordoned"


GROUP_USES_MAX = 10_000  # agents that one join token of a group lets in: more than any site starts at once
SILENT_S_MAX = 100 * 366 * 86_400
FREE_NODES_MAX = 1000  # kinds of what is left on nodes: it is said with every poll


class Load(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The load of a cluster, as its agent last saw it."""

    free_cores: int | None = None
    free_gpus: int | None = None
    free_memory_bytes: int | None = None
    running: int = 0
    queued: int = 0
    trouble: AgentText = ""  # why the agent takes nothing now, e.g. a full disk
    # For how long the batch system has not answered the agent, when the agent said so: the numbers above are as old.
    silent_s: Annotated[int, Meta(ge=0, le=SILENT_S_MAX)] | None = None
    files_trouble: AgentText = ""  # why it takes no jobs with files now
    ends_in_s: Annotated[int, Meta(ge=0)] | None = None  # until an ephemeral cluster ends
    # By node; none: the agent does not know. Shapes are those of the graph with this signature.
    free: Annotated[list[FreeNodes], Meta(max_length=FREE_NODES_MAX)] | None = None
    signature: Annotated[str, Meta(max_length=64)] = ""
    values: NamedValues = {}  # what the site adds

    def __post_init__(self) -> None:
        refuse_infinite(self.values)


# A node's shape in the graph (None: the graph does not know the node), its free cores, GPUs and bytes of memory; and
# its free GPUs by type, if it has several types.
NodeRest = tuple[int | None, int, int, int, tuple[tuple[str, int], ...]]


def load_of(free: Mapping[NodeRest, int], *, signature: str, running: int, queued: int, values: NamedValues) -> Load:
    """The load of a cluster from what is left on its nodes: how many nodes have each rest.

    If the graph does not know every node (a new one, or a graph that the operator wrote), only the sums are known.
    """
    is_known = all(shape is not None for shape, *_ in free) and len(free) <= FREE_NODES_MAX
    return Load(
        free_cores=sum(cores * count for (_, cores, *_), count in free.items()),
        free_gpus=sum(gpus * count for (_, _, gpus, *_), count in free.items()),
        free_memory_bytes=sum(memory * count for (*_, memory, _), count in free.items()),
        running=running,
        queued=queued,
        free=[
            FreeNodes(shape or 0, count, cores, gpus, memory, dict(types))
            for (shape, cores, gpus, memory, types), count in free.items()
        ]
        if is_known
        else None,
        signature=signature,
        values=values,
    )


class Cluster(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cluster as the API shows it."""

    id: str
    name: str
    health: Health
    reason: str = ""
    is_private: bool = False
    is_ephemeral: bool = False  # it leaves by itself, with its last agent
    is_by_token: bool = False  # everyone sees it; who submits to it shows its submit token, or holds a grant
    groups: list[str] = []
    labels: dict[str, str] = {}
    backend: str = ""
    namespaces: list[str] = []  # of Kubernetes: patterns of the namespaces that it serves
    totals: dict[str, int] = {}  # of every type of its graph; none: nobody has said what it has
    load: Load | None = None
    state: list[StateValue] = []  # what selection goes by; not in lists
    quotes: QuoteRecord | None = None  # how well its quotes were kept, once some were; not in lists
    probations: list[Probation] = []  # why it gets few tasks: that of all, and those that the reader may see
    is_probation_off: bool = False  # an operator exempted it
    held: int | None = None  # jobs, and ranges of arrays, that its agents have; not in lists
    unsent: int | None = None  # ended attempts of which its agents still send output files; not in lists
    in_line: int | None = None  # jobs that wait for a lease there, counted up to 10,000; not in lists
    created_us: int = 0
    seen_us: int | None = None


class GraphInfo(Struct, frozen=True, kw_only=True):
    """A graph after it was compiled. Graphs with equal signatures are the same to every job."""

    cluster: str
    nodes: int
    totals: dict[str, int]
    shapes: int
    signature: str


class Subsystem(Struct, frozen=True, kw_only=True):
    """An additional graph of a cluster, as it was set."""

    name: str
    bytes: int
    hash: str
    by: str
    at_us: int


class ClusterRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new cluster. `namespaces`: it is a Kubernetes cluster, and serves these: patterns such as `physics-*`, or `*`.

    Its agents get the rendered objects of the namespaces that it serves, with the contents of Secrets. Without
    `namespaces` no agent joins it as Kubernetes.
    """

    name: Name
    is_private: bool = False
    groups: Annotated[list[Name], Meta(max_length=256)] = []
    labels: Labels = {}
    namespaces: NamespacePatterns = []


class ClusterChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What changes; the rest stays. Only a platform administrator changes `namespaces` (see `ClusterRequest`)."""

    is_cordoned: bool | None = None
    is_private: bool | None = None
    groups: Annotated[list[Name], Meta(max_length=256)] | None = None
    labels: Labels | None = None
    namespaces: NamespacePatterns | None = None
    reason: Title = ""
    # Set by hand, over what agents say; none takes a value away.
    state: Annotated[dict[ValueName, Scalar | None], Meta(max_length=VALUES_MAX)] | None = None

    def __post_init__(self) -> None:
        refuse_infinite(self.state or {})


class InviteRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A join token for this cluster. One use unless `is_reusable`.

    `namespaces`, as of a new cluster, is set by a platform administrator. A cluster that is there gets them, too.
    """

    is_reusable: bool = False
    expires_s: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 86_400
    is_private: bool = False
    groups: Annotated[list[Name], Meta(max_length=256)] = []
    is_ephemeral: bool = False  # a new cluster that leaves by itself when its time is over
    # The token of a pilot: only an agent inside of the job that `PUT /v1/invites/{invite}/job` names joins with it.
    is_for_job: bool = False
    namespaces: NamespacePatterns = []


class InviteJob(Struct, frozen=True, forbid_unknown_fields=True):
    """The job whose agent a join token is for."""

    job: Annotated[str, Meta(min_length=1, max_length=64)]


class Invite(Struct, frozen=True, omit_defaults=True):
    id: str
    cluster: str
    is_reusable: bool
    expires_us: int
    uses: int = 0
    is_revoked: bool = False
    created_us: int = 0
    job: str | None = None  # the job whose agent it is for


class NewInvite(Struct, frozen=True):
    """A new join token, which is shown only once."""

    token: str
    info: Invite
    is_cluster_new: bool = False  # the request also registered the cluster


class GroupInviteRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A join token by which `uses_max` agents join. Each registers a cluster of the group, under a name of its own."""

    uses_max: Annotated[int, Meta(ge=1, le=GROUP_USES_MAX)] = 1
    expires_s: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 86_400
    is_private: bool = False  # of the clusters it registers
    is_ephemeral: bool = False  # of the clusters it registers: they leave by themselves when their time is over
    namespaces: NamespacePatterns = []  # of the clusters it registers: Kubernetes clusters that serve these


class GroupInvite(Struct, frozen=True, omit_defaults=True):
    id: str
    group: str
    uses_max: int
    expires_us: int
    uses: int = 0
    is_private: bool = False
    is_ephemeral: bool = False
    is_revoked: bool = False
    created_us: int = 0
    namespaces: list[str] = []


class NewGroupInvite(Struct, frozen=True):
    """A new join token of a group, which is shown only once."""

    token: str
    info: GroupInvite


class SubmitToken(Struct, frozen=True):
    """A new submit token of a cluster or a group, shown only once. It replaces the earlier token."""

    cluster: str  # or the group
    token: str


class SubmitConsent(Struct, frozen=True):
    """Whether a user agrees that a cluster's administrators make submit tokens in their name."""

    cluster: str
    account: str
    is_given: bool


class Agent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent as the API shows it."""

    id: str
    name: str
    cluster: str
    backend: str
    version: str = ""
    is_live: bool = False
    is_paused: bool = False
    reason: str = ""  # why it is paused
    is_rotation_asked: bool = False
    created_us: int = 0
    seen_us: int | None = None
    place: str = ""  # host, folder and process of the one that has the agent's place, as it says itself
    rival: Rival | None = None  # another process with this agent's credential was refused


class AgentChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`is_paused`: the agent gets no new jobs; its jobs run on. `is_rotation_asked`: it must fetch a new credential."""

    is_paused: bool | None = None
    is_rotation_asked: bool | None = None
    reason: Title = ""
