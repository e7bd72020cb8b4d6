"""The fleet: a snapshot of clusters, agents and submit tokens. A reload keeps the entries of unchanged rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import structlog

from switchyard.errors import Malformed
from switchyard.model.cluster.selection import Scalar
from switchyard.model.graph import Graph
from switchyard.model.graph.stored_graph import read_stored_graph
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.access import GrantTarget
from switchyard.service.core.unreadable_rows import log_unreadable, read_each
from switchyard.store.access import submit_tokens
from switchyard.store.clusters import clusters as cluster_store
from switchyard.store.engine.database import Tx

log = structlog.get_logger()
_GROUPS = msgspec.json.Decoder(tuple[str, ...])
_LABELS = msgspec.json.Decoder(dict[str, str])
_STATE = msgspec.json.Decoder(dict[str, tuple[Scalar, int, str]])


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """The data that authenticates and serves an agent without a database query."""

    id: str
    cluster_id: str
    name: str
    hash: str
    backend: str
    version: str
    created_us: int
    is_paused: bool = False
    reason: str = ""
    next_hash: str | None = None
    next_until_us: int | None = None
    is_rotation_asked: bool = False
    place: str = ""
    rival: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    id: str
    name: str
    is_private: bool
    is_cordoned: bool
    reason: str
    groups: tuple[str, ...]
    labels: dict[str, str]
    backend: str
    graph: Graph | None
    created_us: int
    state: dict[str, tuple[Scalar, int, str]]  # manual values: value, time of the change, user
    row: cluster_store.ClusterRow  # the stored row that this entry was made from
    namespaces: tuple[str, ...] = ()  # of Kubernetes: patterns of the namespaces that it serves

    @property
    def is_ephemeral(self) -> bool:
        """Whether the cluster leaves by itself, with its last agent."""
        return bool(self.row.is_ephemeral)


@dataclass(frozen=True)
class Fleet:
    """Clusters and agents at one version. The router's world is built from the fleet and the live agents."""

    version: int
    rows: dict[str, ClusterEntry]
    agents: dict[str, AgentEntry]
    by_cluster: dict[str, tuple[str, ...]]
    submit_tokens: dict[str, SubmitTokenEntry] = field(default_factory=dict)
    deleted_private_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SubmitTokenEntry:
    """A submit token for one cluster, or for every cluster of a group."""

    on: GrantTarget
    object: str
    account: str  # user id that owns the submitted jobs; empty: no particular user
    hash: str
    maker_id: str | None = None  # the user who made the token; none: no maker to check
    expires_us: int | None = None


def load_fleet(tx: Tx, version: int, *, before: Fleet) -> Fleet:
    rows = {row.id: _readable_entry(row, before.rows.get(row.id)) for row in cluster_store.cluster_all(tx)}
    agents = {row.id: _agent_entry(row, before.agents.get(row.id)) for row in cluster_store.agent_all(tx)}
    by_cluster: dict[str, tuple[str, ...]] = {}
    for agent in agents.values():
        by_cluster[agent.cluster_id] = (*by_cluster.get(agent.cluster_id, ()), agent.id)
    tokens = read_each("submit_tokens", submit_tokens.submit_token_all(tx), _submit_entry)
    deleted_private_names = frozenset(cluster_store.cluster_deleted_private_names(tx))
    return Fleet(version, rows, agents, by_cluster, dict(tokens), deleted_private_names)


def _submit_entry(row: submit_tokens.SubmitTokenRow) -> tuple[str, SubmitTokenEntry]:
    return row.id, SubmitTokenEntry(
        GrantTarget(row.on_kind), row.object, row.account, row.hash, row.maker_id, row.expires_us
    )


def _readable_entry(row: cluster_store.ClusterRow, before: ClusterEntry | None) -> ClusterEntry:
    """Return the cluster's entry. A cluster with an unreadable row is cordoned and private, so it gets no jobs."""
    try:
        return _cluster_entry(row, before)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("clusters", row.id, str(exc))
        reason = f"its stored row cannot be read: {exc}"[:300]
        return ClusterEntry(row.id, row.name, True, True, reason, (), {}, row.backend, None, row.created_us, {}, row)


def _agent_entry(row: cluster_store.AgentRow, before: AgentEntry | None) -> AgentEntry:
    entry = AgentEntry(
        id=row.id,
        cluster_id=row.cluster_id,
        name=row.name,
        hash=row.credential_hash,
        backend=row.backend,
        version=row.version,
        created_us=row.created_us,
        is_paused=bool(row.is_paused),
        reason=row.reason,
        next_hash=row.next_hash,
        next_until_us=row.next_until_us,
        is_rotation_asked=bool(row.is_rotation_asked),
        place=row.place or "",
        rival=row.rival,
    )
    return before if before == entry else entry


def _cluster_entry(row: cluster_store.ClusterRow, before: ClusterEntry | None) -> ClusterEntry:
    """Return the entry of a row. Unchanged rows and graphs are reused: a graph caches its digests and totals."""
    if before is not None and before.row == row:
        return before
    is_same_graph = before is not None and before.row.graph == row.graph
    return ClusterEntry(
        id=row.id,
        name=row.name,
        is_private=bool(row.is_private),
        is_cordoned=bool(row.is_cordoned),
        reason=row.reason,
        groups=_GROUPS.decode(row.groups),
        labels=_LABELS.decode(row.labels),
        backend=row.backend,
        graph=before.graph if is_same_graph and before else _graph(row.graph),
        created_us=row.created_us,
        state=_STATE.decode(row.state),
        row=row,
        namespaces=_GROUPS.decode(row.namespaces),
    )


def _graph(text: str | None) -> Graph | None:
    """Return the stored graph. An unreadable graph is logged and becomes None, so that other clusters still load."""
    try:
        return read_stored_graph(text.encode()) if text else None
    except (Malformed, *UNREADABLE_ERRORS) as exc:
        log.error("graph not understood", error=str(exc)[:300])
        return None
