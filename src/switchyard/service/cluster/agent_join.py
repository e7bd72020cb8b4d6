"""How an agent joins a cluster: a join token for a credential of its own, once, whatever answer is lost on the way."""

from __future__ import annotations

from switchyard.errors import AgentLives, Denied, Gone, Unauthenticated
from switchyard.model.cluster import POLLING_BACKEND, ClusterRequest
from switchyard.model.names import printable_line
from switchyard.model.poll import Join, Joined
from switchyard.service.access.token_makers import maker_problem
from switchyard.service.cluster.clusters import register_cluster
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.credential import make_credential, secret_matches, split_credential
from switchyard.store import clusters


def join_agent(context: Context, token: str, request: Join, *, is_open: bool) -> Joined:
    """An agent joins a cluster and gets a credential of its own.

    The same name with the same journal takes over at once (it was restarted, or lost its credential); with another
    journal only when the first is silent.
    """
    parts = split_credential(token, "join") if token else None
    if parts is None and not is_open:
        raise Unauthenticated(
            "Joining needs a join token.", next_step=f"Get one with `yard cluster invite {request.cluster}`."
        )
    if parts is not None:
        context.snapshots.refresh()  # who made the join token may have been removed at another server a moment ago
    agent_id = context.new_id()
    credential, hash_ = make_credential("agent", agent_id)

    def apply(batch: Batch) -> str:
        cluster_id = use_join_token(batch, context, parts, request) if parts else _join_open(batch, context, request)
        before = clusters.agent_lock_by_name(batch.tx, cluster_id, request.name)
        if before is not None:
            if before.journal != request.journal and context.snapshots.is_live(before.id):
                raise AgentLives(f"An agent {request.name} of cluster {request.cluster} is alive with another journal.")
            if before.journal == request.journal:
                # The same disk: it keeps its leases, so it keeps its identity; only the credential is new.
                renewed = {"credential_hash": hash_, "next_hash": None, "version": printable_line(request.version)}
                if not context.snapshots.is_live(before.id):
                    # An operator's token lets a folder from a backup in again: what it says of its journal holds anew.
                    # No process has the place from here on, so what a server remembers of the last one does not count.
                    renewed |= {"starts": None, "writes": None, "rival": None, "incarnation": ""}
                clusters.agent_change(batch.tx, before.id, renewed)
                bump_version(batch, "clusters")
                record_audit(batch, context, f"agent:{request.name}", "agent.rejoin", request.cluster)
                return str(before.id)
            clusters.agent_change(batch.tx, before.id, {"deleted_us": batch.now_us})
        clusters.agent_insert(batch.tx, new_agent_row(batch, agent_id, cluster_id, hash_, request))
        clusters.cluster_change(batch.tx, cluster_id, {"backend": request.backend})
        bump_version(batch, "clusters")
        record_audit(batch, context, f"agent:{request.name}", "agent.join", request.cluster, after={"agent": agent_id})
        return agent_id

    joined_id = context.committer.call(apply)
    credential = credential.replace(agent_id, joined_id, 1)
    return Joined(joined_id, request.cluster, credential)


def new_agent_row(batch: Batch, agent_id: str, cluster_id: str, hash_: str, request: Join) -> dict[str, object]:
    return {
        "id": agent_id,
        "cluster_id": cluster_id,
        "name": request.name,
        "journal": request.journal,
        "credential_hash": hash_,
        "session": 0,
        "incarnation": "",
        "backend": request.backend,
        "version": printable_line(request.version),
        "load": None,
        "created_us": batch.now_us,
        "seen_us": None,
        "deleted_us": None,
    }


def use_join_token(batch: Batch, context: Context, parts: tuple[str, str], request: Join) -> str:
    """Check and use up a join token. Its maker must still be an administrator of the cluster."""
    invite_id, secret = parts
    row = clusters.invite_lock(batch.tx, invite_id)
    if row is None or not secret_matches(secret, row.token_hash):
        raise Unauthenticated("The join token is unknown.", next_step="Get a new one with `yard cluster invite`.")
    # Read from the store: the invite may have been made at another replica a moment ago.
    cluster = clusters.cluster_by_id(batch.tx, row.cluster_id)
    if cluster is None:
        raise Gone("The cluster this join token was for is gone.")
    if cluster.name != request.cluster:
        raise Denied(
            f"The join token is for another cluster than {request.cluster}.",
            next_step="Ask an administrator for one of this cluster (`yard cluster invite NAME`).",
        )
    snapshots = context.snapshots
    if why := maker_problem(snapshots.access, row.maker_id, snapshots.world.by_id.get(cluster.id)):
        raise Unauthenticated(
            f"The join token {why}.", next_step=f"Ask an administrator to run `yard cluster invite {request.cluster}`."
        )
    is_again = bool(row.uses) and not row.is_reusable and _is_answer_lost(batch, str(cluster.id), request)
    is_used = bool(row.uses) and not row.is_reusable and not is_again
    if row.revoked_us is not None or row.expires_us <= batch.now_us or is_used:
        why = "was revoked" if row.revoked_us else "has expired" if row.expires_us <= batch.now_us else "was used"
        raise Unauthenticated(f"The join token {why}.", next_step=f"Run `yard cluster invite {request.cluster}` again.")
    if not is_again:
        clusters.invite_change(batch.tx, invite_id, {"uses": row.uses + 1})
    return str(cluster.id)


def _is_answer_lost(batch: Batch, cluster_id: str, request: Join) -> bool:
    """Whether this agent has joined already and never used its credential: the answer was lost, and it asks again."""
    if request.backend == POLLING_BACKEND:
        return False  # it has no journal, and nobody sees when it uses its secret
    before = clusters.agent_lock_by_name(batch.tx, cluster_id, request.name)
    return before is not None and before.journal == request.journal and not before.incarnation


def _join_open(batch: Batch, context: Context, request: Join) -> str:
    """With --no-auth an agent joins without a token, and registers its cluster."""
    row = clusters.cluster_by_name(batch.tx, request.cluster)
    return row.id if row else register_cluster(batch, context, "local-admin", ClusterRequest(request.cluster))
