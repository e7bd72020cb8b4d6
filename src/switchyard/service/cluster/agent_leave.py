"""Remove ephemeral clusters: when their last agent leaves, or when all their agents have been silent for long."""

from __future__ import annotations

import msgspec

from switchyard.errors import Conflict, Denied
from switchyard.model.cluster import EPHEMERAL_LABEL, EPHEMERAL_VALUE
from switchyard.model.poll import Leave, Left
from switchyard.service.cluster.agents import require_place
from switchyard.service.cluster.clusters import end_registration, give_up_outputs, refuse_while_jobs_live
from switchyard.service.core.audit import record_audit
from switchyard.service.core.batch import Batch, Topic
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.fleet import AgentEntry
from switchyard.store import clusters

# An agent that was killed cannot leave. By then, what it held is lost and decided by the jobs' `on_lost`.
SILENT_US = 600_000_000
UPKEEP_ACTOR = "upkeep"


def is_ephemeral(labels: str) -> bool:
    """Whether a cluster with these stored labels leaves by itself."""
    return bool(msgspec.json.decode(labels, type=dict[str, str]).get(EPHEMERAL_LABEL) == EPHEMERAL_VALUE)


def leave_cluster(context: Context, entry: AgentEntry, request: Leave) -> Left:
    """Remove the agent that asks. Raises Conflict while it has jobs that have not ended.

    Only the process that holds the agent's session may leave, and only from an ephemeral cluster: other clusters are
    removed by people.
    """
    require_place(context, entry, request.incarnation)
    row = context.snapshots.fleet.rows[entry.cluster_id]
    if row.labels.get(EPHEMERAL_LABEL) != EPHEMERAL_VALUE:
        raise Denied(f"The cluster {row.name} is not ephemeral: `yard cluster rm` removes it.")
    others = [agent for agent in context.snapshots.fleet.by_cluster.get(entry.cluster_id, ()) if agent != entry.id]
    member = context.snapshots.world.by_id.get(entry.cluster_id)
    if not others and member is not None:
        end_registration(context, member, by=f"agent:{entry.name}", abandon=False)
        return Left(entry.id, row.name, is_cluster_removed=True)

    def apply(batch: Batch) -> None:
        refuse_while_jobs_live(batch, [entry.id], f"agent {entry.name}", False)
        give_up_outputs(batch, entry.cluster_id, [entry.id], f"agent {entry.name}", False)
        clusters.agent_change(batch.tx, entry.id, clusters.AgentUpdate(deleted_us=batch.now_us))
        bump_version(batch, Topic.CLUSTERS)
        batch.clusters.add(entry.cluster_id)
        record_audit(batch, context, f"agent:{entry.name}", "agent.leave", f"{row.name}/{entry.name}")

    context.committer.call(apply)
    return Left(entry.id, row.name, is_cluster_removed=False)


def remove_silent_clusters(context: Context) -> int:
    """Remove ephemeral clusters whose agents were killed. Returns the number of clusters.

    A cluster that no agent has joined yet stays: the job of a pilot may wait for days. So does a cluster with jobs that
    have not ended, as they wait for its agent.
    """
    snapshots, removed = context.snapshots, 0
    for row in list(snapshots.fleet.rows.values()):
        seen_us = [snapshots.seen.get(agent, 0) for agent in snapshots.fleet.by_cluster.get(row.id, ())]
        member = snapshots.world.by_id.get(row.id)
        is_over = bool(seen_us) and max(seen_us) + SILENT_US < context.now_us()
        if row.labels.get(EPHEMERAL_LABEL) != EPHEMERAL_VALUE or not is_over or member is None:
            continue
        try:
            end_registration(context, member, by=UPKEEP_ACTOR, abandon=False)
            removed += 1
        except Conflict:
            continue
    return removed
