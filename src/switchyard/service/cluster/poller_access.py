"""How clusters that only poll come in: they register themselves, and show their secret from then on."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from switchyard.errors import Denied, NameTaken
from switchyard.model.access import GrantTarget
from switchyard.model.cluster import POLLING_BACKEND, ClusterRequest
from switchyard.model.poll import Join
from switchyard.service.access.submit_tokens import create_submit_token
from switchyard.service.cluster import graphs
from switchyard.service.cluster.agent_join import new_agent_row, use_join_token
from switchyard.service.cluster.agents import finish_rotation, is_next_credential
from switchyard.service.cluster.clusters import register_cluster, restrict_to_submit_tokens
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.credential import make_credential, secret_matches, split_credential
from switchyard.service.fleet import AgentEntry
from switchyard.store import clusters
from switchyard.store import graphs as graph_store

POLLER_AGENT_NAME = "poller"


@dataclass(frozen=True, slots=True)
class PollerCredentials:
    """Both are shown once."""

    token: str
    secret: str


def poller_register(
    context: Context, name: str, source: graphs.PackedGraph, *, invite: tuple[str, str] | None
) -> PollerCredentials | None:
    """Register a cluster with what it has, all or nothing; none: the name is taken.

    `invite`: the invitation by which it comes, which is used up; without, the caller has seen the server's secret.
    Many know that one, so jobs reach such a cluster only with its submit token until an administrator shares it.
    """
    request = Join(cluster=name, name=POLLER_AGENT_NAME, journal=context.new_id(), backend=POLLING_BACKEND)
    graph = graphs.compile_sources(context, {graphs.OPERATOR_SOURCE: source}, where=f"cluster {name}")
    assert graph is not None
    context.snapshots.refresh()  # as for an agent that joins
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
            kept = graphs.source_row(batch, cluster_id, graphs.OPERATOR_SOURCE, source, by=POLLER_AGENT_NAME)
            graph_store.source_put(batch.tx, kept)
            clusters.cluster_change(batch.tx, cluster_id, {"backend": POLLING_BACKEND, "graph": encoded})
        agent_id, secret = _issue_secret(batch, context, cluster_id, request)
        bump_version(batch, "clusters")
        record_audit(batch, context, POLLER_AGENT_NAME, "cluster.register", name, after={"agent": agent_id})
        return PollerCredentials(create_submit_token(batch, context, GrantTarget.CLUSTER, cluster_id), secret)

    try:
        found: PollerCredentials | None = context.committer.call(apply)
    except NameTaken:
        return None
    return found


def check_join_token(context: Context, name: str, join_token: str) -> tuple[str, str]:
    """The parts of a join token of this cluster, used up or not. For a first look: no stranger's graph is read."""
    parts = split_credential(join_token, "join")
    with context.database.read() as tx:
        invite = clusters.invite_peek(tx, parts[0]) if parts else None
        row = clusters.cluster_by_id(tx, invite.cluster_id) if invite else None
    is_its = parts is not None and invite is not None and secret_matches(parts[1], invite.token_hash)
    if parts is None or not is_its or row is None or row.name != name:
        raise Denied(
            "request denied: this is neither the registration secret nor a join token of this cluster.",
            next_step="Ask an administrator for a join token (`yard cluster invite NAME`).",
        )
    return parts


def _is_vacant(batch: Batch, context: Context, row: clusters.Row, parts: tuple[str, str] | None) -> bool:
    """A name that the server's file has, or that an invitation is for, waits for whoever has the right to it.

    A new invitation, good for once, is also how a cluster that lost its secret, or whose secret others know, gets
    another; one with an agent of ours is not taken over.
    """
    agents = clusters.agent_count(batch.tx, row.id)
    if parts is None:
        return row.name in context.snapshots.laid.base.clusters and row.graph is None and not agents
    invite = clusters.invite_lock(batch.tx, parts[0])
    if not agents and row.graph is None:
        return invite is None or not invite.uses or invite.is_reusable
    has_poller = _poller_of(batch, row.id) is not None
    return agents == has_poller and invite is not None and not invite.uses and not invite.is_reusable


def _poller_of(batch: Batch, cluster_id: str) -> clusters.Row | None:
    found = clusters.agent_lock_by_name(batch.tx, cluster_id, POLLER_AGENT_NAME)
    return found if found is not None and found.backend == POLLING_BACKEND else None


def _issue_secret(batch: Batch, context: Context, cluster_id: str, request: Join) -> tuple[str, str]:
    """Its id and its new secret. Who was there keeps the id, and with it what it received."""
    before = _poller_of(batch, cluster_id)
    agent_id = before.id if before is not None else context.new_id()
    secret, hash_ = make_credential("agent", agent_id)
    if before is None:
        clusters.agent_insert(batch.tx, new_agent_row(batch, agent_id, cluster_id, hash_, request))
    else:
        clusters.agent_change(batch.tx, agent_id, {"credential_hash": hash_, "next_hash": None})
    return agent_id, secret


def authenticate_poller(context: Context, name: str, secret: str) -> AgentEntry:
    """Whoever knows the secret of this cluster. A wrong name and a wrong secret are told the same."""
    parts = split_credential(secret, "agent")
    found = _find_poller(context, name, parts) if parts else None
    if found is None and parts is not None:
        context.snapshots.refresh()  # it may have been registered at another server a moment ago
        found = _find_poller(context, name, parts)
    if found is None:
        raise Denied(
            "request denied: there is no such cluster, or this is not its secret.",
            next_step="Show the secret that Register answered; one that is lost is replaced by registering once more "
            "with a new join token (`yard cluster invite NAME`).",
        )
    return found


def _find_poller(context: Context, name: str, parts: tuple[str, str]) -> AgentEntry | None:
    fleet = context.snapshots.fleet
    entry = fleet.agents.get(parts[0])
    row = fleet.rows.get(entry.cluster_id) if entry is not None else None
    if entry is None or entry.backend != POLLING_BACKEND or row is None or row.name != name:
        return None
    if secret_matches(parts[1], entry.hash):
        return entry
    if is_next_credential(entry, parts[1], context.now_us()):
        finish_rotation(context, entry, parts[1])
        return entry
    return None
