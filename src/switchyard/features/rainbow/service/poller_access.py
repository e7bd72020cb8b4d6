"""Register and authenticate polling clusters. A polling cluster runs no Switchyard agent; it signs in with a secret."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from switchyard.errors import Denied, NameTaken
from switchyard.model.cluster.cluster import POLLING_BACKEND, ClusterRequest
from switchyard.model.cluster.poll import Join
from switchyard.model.rules.access import GrantTarget
from switchyard.service.cluster import graphs
from switchyard.service.cluster.agent_join import new_agent_row, use_join_token
from switchyard.service.cluster.agents import finish_rotation, is_next_credential
from switchyard.service.cluster.clusters import register_cluster, restrict_to_submit_tokens
from switchyard.service.core.agents.credential import make_credential, secret_matches, split_credential
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.submit_tokens import create_submit_token
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.clusters import clusters
from switchyard.store.clusters import graphs as graph_store

POLLER_AGENT_NAME = "poller"


@dataclass(frozen=True, slots=True)
class PollerCredentials:
    """A new cluster's submit token and secret. Both are shown once."""

    token: str
    secret: str


def poller_register(
    context: Context, name: str, source: graphs.PackedGraph, *, invite: tuple[str, str] | None
) -> PollerCredentials | None:
    """Register a cluster with its graph in one transaction. Return none if the name is taken.

    `invite` is a join token, which this call uses up. Without one, the caller has checked the server's registration
    secret. Many may know that secret, so such a cluster takes only jobs with its submit token until an administrator
    shares it.
    """
    request = Join(cluster=name, name=POLLER_AGENT_NAME, journal=context.new_id(), backend=POLLING_BACKEND)
    graph = graphs.compile_sources(context, {graphs.OPERATOR_SOURCE: source}, where=f"cluster {name}")
    assert graph is not None
    context.snapshots.refresh()  # another server may just have removed the token's maker
    encoded = msgspec.json.encode(graph).decode()

    def apply(batch: Batch) -> PollerCredentials | None:
        row = clusters.cluster_by_name(batch.tx, name)
        if row is not None and not _is_vacant(batch, context, row, invite):
            return None
        if invite is not None:
            cluster_id = use_join_token(batch, context, invite, request)
        else:
            cluster_id = row.id if row else register_cluster(batch, context, POLLER_AGENT_NAME, ClusterRequest(name))
            restrict_to_submit_tokens(batch, context, cluster_id)
        if row is None or row.graph is None:
            graph_source = graphs.source_row(batch, cluster_id, graphs.OPERATOR_SOURCE, source, by=POLLER_AGENT_NAME)
            graph_store.source_put(batch.tx, graph_source)
            clusters.cluster_change(
                batch.tx, cluster_id, clusters.ClusterUpdate(backend=POLLING_BACKEND, graph=encoded)
            )
        agent_id, secret = _issue_secret(batch, context, cluster_id, request)
        bump_version(batch, Topic.CLUSTERS)
        record_audit(batch, context, POLLER_AGENT_NAME, "cluster.register", name, after={"agent": agent_id})
        return PollerCredentials(create_submit_token(batch, context, GrantTarget.CLUSTER, cluster_id), secret)

    try:
        credentials: PollerCredentials | None = context.committer.call(apply)
    except NameTaken:
        return None
    return credentials


def check_join_token(context: Context, name: str, join_token: str) -> tuple[str, str]:
    """Return the parts of a join token, used or not. Raise Denied before any graph of an unknown sender is read."""
    parts = split_credential(join_token, "join")
    with context.database.read() as tx:
        invite = clusters.invite_peek(tx, parts[0]) if parts else None
        row = clusters.cluster_by_id(tx, invite.cluster_id) if invite else None
    is_valid = parts is not None and invite is not None and secret_matches(parts[1], invite.token_hash)
    if parts is None or not is_valid or row is None or row.name != name:
        raise Denied(
            "request denied: this is neither the registration secret nor a join token of this cluster.",
            next_step="Ask an administrator for a join token (`yard cluster invite NAME`).",
        )
    return parts


def _is_vacant(batch: Batch, context: Context, row: clusters.ClusterRow, parts: tuple[str, str] | None) -> bool:
    """Return whether a caller may take this registered name.

    A name from the server's config file, or from a join token, is reserved until its cluster registers. A new
    single-use join token also replaces the secret of a polling cluster. A cluster with an agent is never taken over.
    """
    agents = clusters.agent_count(batch.tx, row.id)
    if parts is None:
        return row.name in context.snapshots.laid.base.clusters and row.graph is None and not agents
    invite = clusters.invite_lock(batch.tx, parts[0])
    if not agents and row.graph is None:
        return invite is None or not invite.uses or invite.is_reusable
    has_poller = _poller_of(batch, row.id) is not None
    return agents == has_poller and invite is not None and not invite.uses and not invite.is_reusable


def _poller_of(batch: Batch, cluster_id: str) -> clusters.AgentRow | None:
    agent = clusters.agent_lock_by_name(batch.tx, cluster_id, POLLER_AGENT_NAME)
    return agent if agent is not None and agent.backend == POLLING_BACKEND else None


def _issue_secret(batch: Batch, context: Context, cluster_id: str, request: Join) -> tuple[str, str]:
    """Return the poller's id and a new secret. A known poller keeps its id, and with it its jobs."""
    before = _poller_of(batch, cluster_id)
    agent_id = before.id if before is not None else context.new_id()
    secret, hash_ = make_credential("agent", agent_id)
    if before is None:
        clusters.agent_insert(batch.tx, new_agent_row(batch, agent_id, cluster_id, hash_, request))
    else:
        clusters.agent_change(batch.tx, agent_id, clusters.AgentUpdate(credential_hash=hash_, next_hash=None))
    return agent_id, secret


def authenticate_poller(context: Context, name: str, secret: str) -> AgentEntry:
    """Return the poller with this cluster name and secret. A wrong name and a wrong secret give the same error."""
    parts = split_credential(secret, "agent")
    poller = _find_poller(context, name, parts) if parts else None
    if poller is None and parts is not None:
        context.snapshots.refresh()  # another server may just have registered the cluster
        poller = _find_poller(context, name, parts)
    if poller is None:
        raise Denied(
            "request denied: there is no such cluster, or this is not its secret.",
            next_step="Send the secret that Register returned. To replace a lost secret, register again with a new "
            "join token (`yard cluster invite NAME`).",
        )
    return poller


def known_poller(context: Context, name: str, secret: str) -> AgentEntry | None:
    """Return the poller with this cluster name and its current secret, without the database.

    None proves nothing: `authenticate_poller` decides.
    """
    parts = split_credential(secret, "agent")
    entry = _poller_named(context, name, parts[0]) if parts is not None else None
    return entry if entry is not None and parts is not None and secret_matches(parts[1], entry.hash) else None


def _find_poller(context: Context, name: str, parts: tuple[str, str]) -> AgentEntry | None:
    entry = _poller_named(context, name, parts[0])
    if entry is None:
        return None
    if secret_matches(parts[1], entry.hash):
        return entry
    if is_next_credential(entry, parts[1], context.now_us()):
        finish_rotation(context, entry, parts[1])
        return entry
    return None


def _poller_named(context: Context, name: str, agent_id: str) -> AgentEntry | None:
    fleet = context.snapshots.fleet
    entry = fleet.agents.get(agent_id)
    row = fleet.rows.get(entry.cluster_id) if entry is not None else None
    if entry is None or entry.backend != POLLING_BACKEND or row is None or row.name != name:
        return None
    return entry
