"""Let an agent join a cluster: exchange a join token for a credential. A lost answer does not use up the token."""

from __future__ import annotations

from msgspec.structs import replace

from switchyard.errors import AgentLives, Denied, Gone, ProofMissing, Unauthenticated
from switchyard.model.cluster.cluster import POLLING_BACKEND, ClusterRequest
from switchyard.model.cluster.namespace_resources import BACKEND
from switchyard.model.cluster.poll import Join, Joined
from switchyard.model.rules.names import printable_line
from switchyard.service.cluster.clusters import register_cluster
from switchyard.service.cluster.group_invites import count_use, lock_group_invite, open_cluster
from switchyard.service.cluster.pilots import find_proof
from switchyard.service.cluster.served_namespaces import (
    ALL_NAMESPACES,
    encode_patterns,
    need_declared_backend,
    serves_any,
)
from switchyard.service.core.agents.credential import make_credential, maker_problem, secret_matches, split_credential
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.clusters import clusters


def join_agent(context: Context, token: str, request: Join, *, is_open: bool) -> Joined:
    """Register an agent with a cluster and return its credential.

    An agent with a known name and the same journal replaces the earlier agent at once: it was restarted, or lost its
    credential. An agent with another journal may replace the earlier agent only when that agent is not live.
    """
    parts = split_credential(token, "join") if token else None
    if parts is None and not is_open:
        raise Unauthenticated(
            "Joining needs a join token.", next_step=f"Get one with `yard cluster invite {request.cluster}`."
        )
    proven_job = None
    if parts is not None:
        context.snapshots.refresh()  # another server may just have removed the token's maker
        proven_job = find_proof(context, parts, request)
    agent_id = context.new_id()
    credential, hash_ = make_credential("agent", agent_id)

    def apply(batch: Batch) -> str:
        cluster_id = _enter_cluster(batch, context, parts, request, proven_job=proven_job)
        if request.is_ephemeral:
            _need_ephemeral(batch, cluster_id)
        need_declared_backend(batch, cluster_id, request.backend)
        before = clusters.agent_lock_by_name(batch.tx, cluster_id, request.name)
        if before is not None:
            if before.journal != request.journal and context.snapshots.is_live(before.id):
                raise AgentLives(f"An agent {request.name} of cluster {request.cluster} is alive with another journal.")
            if before.journal == request.journal:
                # The same journal has the same leases, so the agent keeps its id and gets only a new credential.
                version = printable_line(request.version)
                renewed = clusters.AgentUpdate(credential_hash=hash_, next_hash=None, version=version)
                if not context.snapshots.is_live(before.id):
                    # An agent restored from a backup may join again. Forget the counters of its journal and its last
                    # process, so that the next sync is accepted with older counters.
                    renewed = replace(renewed, starts=None, writes=None, rival=None, incarnation="")
                clusters.agent_change(batch.tx, before.id, renewed)
                bump_version(batch, Topic.CLUSTERS)
                record_audit(batch, context, f"agent:{request.name}", "agent.rejoin", request.cluster)
                return str(before.id)
            clusters.agent_change(batch.tx, before.id, clusters.AgentUpdate(deleted_us=batch.now_us))
        clusters.agent_insert(batch.tx, new_agent_row(batch, agent_id, cluster_id, hash_, request))
        clusters.cluster_change(batch.tx, cluster_id, clusters.ClusterUpdate(backend=request.backend))
        bump_version(batch, Topic.CLUSTERS)
        by_token = {"invite": parts[0]} if parts else {}  # the id of the join token is no secret
        after = {"agent": agent_id, **by_token}
        record_audit(batch, context, f"agent:{request.name}", "agent.join", request.cluster, after=after)
        return agent_id

    joined_id = context.committer.call(apply)
    credential = credential.replace(agent_id, joined_id, 1)
    return Joined(joined_id, request.cluster, credential)


def _enter_cluster(
    batch: Batch, context: Context, parts: tuple[str, str] | None, request: Join, *, proven_job: str | None
) -> str:
    """Return the id of the cluster that the agent may join: by a join token, a group's join token, or without one."""
    if parts is None:
        return _join_open(batch, context, request)
    invite = lock_group_invite(batch, parts)
    if invite is None:
        return use_join_token(batch, context, parts, request, proven_job=proven_job)
    cluster_id = open_cluster(batch, context, invite, request)
    if not _is_answer_lost(batch, cluster_id, request):
        count_use(batch, invite)
    return cluster_id


def new_agent_row(batch: Batch, agent_id: str, cluster_id: str, hash_: str, request: Join) -> clusters.AgentRow:
    return clusters.AgentRow(
        id=agent_id,
        cluster_id=cluster_id,
        name=request.name,
        journal=request.journal,
        credential_hash=hash_,
        next_hash=None,
        next_until_us=None,
        is_rotation_asked=False,
        is_paused=False,
        reason="",
        session=0,
        incarnation="",
        backend=request.backend,
        version=printable_line(request.version),
        load=None,
        created_us=batch.now_us,
        seen_us=None,
        deleted_us=None,
        starts=None,
        writes=None,
        place=None,
        rival=None,
    )


def use_join_token(
    batch: Batch, context: Context, parts: tuple[str, str], request: Join, *, proven_job: str | None = None
) -> str:
    """Check a join token and count its use. The maker must still be an administrator of the cluster.

    `proven_job`: the job inside of which the agent has shown to run. A later attempt of that job joins again.
    """
    invite_id, secret = parts
    row = clusters.invite_lock(batch.tx, invite_id)
    if row is None or not secret_matches(secret, row.token_hash):
        raise Unauthenticated("The join token is unknown.", next_step="Get a new one with `yard cluster invite`.")
    # Read the cluster from the database: another server may just have registered it.
    # Lock it: its last agent may be leaving, and removes it.
    cluster = clusters.cluster_lock(batch.tx, row.cluster_id)
    if cluster is None:
        raise Gone("The cluster this join token was for is gone.")
    if cluster.name != request.cluster:
        raise Denied(
            f"The join token is for another cluster than {request.cluster}.",
            next_step="Ask an administrator for one of this cluster (`yard cluster invite NAME`).",
        )
    snapshots = context.snapshots
    if problem := maker_problem(snapshots.access, row.maker_id, snapshots.world.by_id.get(cluster.id)):
        raise Unauthenticated(
            f"The join token {problem}.",
            next_step=f"Ask an administrator to run `yard cluster invite {request.cluster}`.",
        )
    is_once = not row.is_reusable and not row.is_for_job
    is_retry = bool(row.uses) and is_once and _is_answer_lost(batch, str(cluster.id), request)
    is_used = bool(row.uses) and is_once and not is_retry
    is_proven = row.is_for_job and row.job_id is not None and row.job_id == proven_job
    is_expired = row.expires_us <= batch.now_us and not is_proven  # the job of a proven one has started in time
    if row.revoked_us is not None or is_expired or is_used:
        problem = "was revoked" if row.revoked_us else "has expired" if is_expired else "was used"
        raise Unauthenticated(
            f"The join token {problem}.", next_step=f"Run `yard cluster invite {request.cluster}` again."
        )
    if row.is_for_job and not is_proven:
        raise ProofMissing
    if not is_retry:
        clusters.invite_change(batch.tx, invite_id, clusters.InviteUpdate(uses=row.uses + 1))
    return str(cluster.id)


def _is_answer_lost(batch: Batch, cluster_id: str, request: Join) -> bool:
    """Return whether this agent joined before and never used its credential: the answer was lost, and it retries."""
    if request.backend == POLLING_BACKEND:
        return False  # a poller has no journal, and the first use of its secret is not recorded
    before = clusters.agent_lock_by_name(batch.tx, cluster_id, request.name)
    return before is not None and before.journal == request.journal and not before.incarnation


def _join_open(batch: Batch, context: Context, request: Join) -> str:
    """Let an agent join without a token (`--no-auth`). Register its cluster if needed, and return the cluster id.

    On such a server everybody is a platform administrator, so the agent may say that its cluster is Kubernetes.
    """
    row = clusters.cluster_by_name(batch.tx, request.cluster)
    served = ALL_NAMESPACES if request.backend == BACKEND else ()
    if row is not None:
        if served and not serves_any(row):
            clusters.cluster_change(batch.tx, row.id, clusters.ClusterUpdate(namespaces=encode_patterns(served)))
        return str(row.id)
    new_cluster = ClusterRequest(request.cluster, namespaces=list(served))
    return register_cluster(batch, context, "local-admin", new_cluster, is_ephemeral=request.is_ephemeral)


def _need_ephemeral(batch: Batch, cluster_id: str) -> None:
    """Refuse an ephemeral agent at a cluster that stays: it would take the cluster with it when it leaves."""
    row = clusters.cluster_by_id(batch.tx, cluster_id)
    if row is not None and not row.is_ephemeral:
        raise Denied(
            f"The cluster {row.name} is not ephemeral, and an agent with --ephemeral removes its cluster at the end.",
            next_step="Give it a cluster of its own: `yard cluster invite NAME --ephemeral`.",
        )
