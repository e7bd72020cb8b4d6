"""Remove ephemeral clusters: when their last agent leaves, when all agents are silent for long, or none can join."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from switchyard.errors import Conflict, Denied, Gone
from switchyard.model.cluster.poll import Leave, Left
from switchyard.model.rules.names import printable_line
from switchyard.service.cluster.agents import require_place
from switchyard.service.cluster.clusters import give_up_outputs, refuse_while_jobs_live, remove_registration
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.clusters import clusters, group_invites
from switchyard.store.engine.clock_jumps import AMNESTY_COUNTER
from switchyard.store.jobs import events

# An agent that was killed cannot leave. By then, what it held is lost and decided by the jobs' `on_lost`.
SILENT_US = 600_000_000
UPKEEP_ACTOR = "upkeep"
TIME_OVER = "the time of its cluster is over"

# Runs a write of the leader; changes nothing and returns 0 if another server leads by then (Leadership.commit).
LeaderCommit = Callable[[Context, Callable[[Batch], int]], int]


def leave_cluster(context: Context, entry: AgentEntry, request: Leave) -> Left:
    """Remove the agent that asks, and the cluster with its last agent. Raises Conflict while it has jobs that have not
    ended, unless the cluster itself is over: then these jobs are lost, and the `on_lost` of each decides.

    Only the process that holds the agent's session may leave, and only from an ephemeral cluster: other clusters are
    removed by people.
    """
    require_place(context, entry, request.incarnation)
    by = f"agent:{entry.name}"

    def apply(batch: Batch) -> Left:
        # The lock makes agents that leave at the same time wait for each other: the second one is the last.
        row = clusters.cluster_lock(batch.tx, entry.cluster_id)
        if row is None:
            raise Gone("The cluster of this agent is gone.")
        if not row.is_ephemeral:
            raise Denied(f"The cluster {row.name} is not ephemeral: `yard cluster rm` removes it.")
        others = [agent for agent in clusters.agent_of(batch.tx, row.id) if agent.id != entry.id]
        member = context.snapshots.world.by_id.get(row.id)
        is_over = request.is_over
        if is_over:
            pilot_jobs = [
                row.job_id for row in group_invites.pilot_list(batch.tx, [row.id], now_us=batch.now_us) if row.job_id
            ]
            of_pilot = f" (pilot {pilot_jobs[-1]})" if pilot_jobs else ""
            note_why_removed(batch, [entry.id], printable_line(request.reason) + of_pilot)
        if not others and member is not None:
            remove_registration(batch, context, member, by=by, abandon_jobs=is_over, abandon_outputs=is_over)
            return Left(entry.id, row.name, is_cluster_removed=True)
        refuse_while_jobs_live(batch, [entry.id], f"agent {entry.name}", is_over)
        give_up_outputs(batch, row.id, [entry.id], f"agent {entry.name}", is_over)
        clusters.agent_change(batch.tx, entry.id, clusters.AgentUpdate(deleted_us=batch.now_us))
        bump_version(batch, Topic.CLUSTERS)
        batch.clusters.add(row.id)
        record_audit(batch, context, by, "agent.leave", f"{row.name}/{entry.name}")
        return Left(entry.id, row.name, is_cluster_removed=False)

    return context.committer.call(apply)


def note_why_removed(batch: Batch, agent_ids: Sequence[str], reason: str) -> None:
    """Store why agents are removed, for the reasons of the jobs that are lost with them."""
    for agent_id in agent_ids:
        clusters.agent_change(batch.tx, agent_id, clusters.AgentUpdate(reason=reason))


def remove_silent_clusters(context: Context, commit: LeaderCommit) -> int:
    """Remove ephemeral clusters whose agents were killed, or that no agent can join any more. Returns their number.

    A cluster with a valid join token stays: the job of a pilot may wait for days. So does a cluster with jobs that have
    not ended, as they wait for its agent, until the time of the cluster is over.
    """
    cluster_ids = [row.id for row in context.snapshots.fleet.rows.values() if row.is_ephemeral]
    # A cheap check first: clusters whose agents were just seen need no transaction.
    due = [cluster_id for cluster_id in cluster_ids if _is_silent_here(context, cluster_id)]
    return sum(_remove_if_over(context, commit, cluster_id) for cluster_id in due)


def _is_silent_here(context: Context, cluster_id: str) -> bool:
    snapshots = context.snapshots
    agents = snapshots.fleet.by_cluster.get(cluster_id, ())
    return max((snapshots.seen.get(agent, 0) for agent in agents), default=0) + SILENT_US < context.now_us()


def _remove_if_over(context: Context, commit: LeaderCommit, cluster_id: str) -> int:
    def apply(batch: Batch) -> int:
        row = clusters.cluster_lock(batch.tx, cluster_id)
        member = context.snapshots.world.by_id.get(cluster_id)
        if row is None or member is None or not row.is_ephemeral or not _is_over(batch, context, cluster_id):
            return 0
        is_over = _is_time_over(context, cluster_id)
        if is_over:
            note_why_removed(batch, [agent.id for agent in clusters.agent_of(batch.tx, cluster_id)], TIME_OVER)
        # Files that a killed agent did not send will never come.
        remove_registration(batch, context, member, by=UPKEEP_ACTOR, abandon_jobs=is_over, abandon_outputs=True)
        return 1

    try:
        return commit(context, apply)
    except Conflict:
        return 0


def _is_time_over(context: Context, cluster_id: str) -> bool:
    """Return whether all agents of the cluster said when it ends, and that time is over."""
    agents, snapshots = context.snapshots.fleet.by_cluster.get(cluster_id, ()), context.snapshots
    return bool(agents) and all(snapshots.is_agent_time_over(agent) for agent in agents)


def _is_over(batch: Batch, context: Context, cluster_id: str) -> bool:
    """Return whether all agents of a locked cluster have been silent for long, or it has none and nobody can join."""
    if not clusters.agent_of(batch.tx, cluster_id):
        return not clusters.invite_usable_count(batch.tx, cluster_id, now_us=batch.now_us)
    return are_agents_silent(batch, context, cluster_id, for_us=SILENT_US)


def are_agents_silent(batch: Batch, context: Context, cluster_id: str, *, for_us: int) -> bool:
    """Return whether all agents of a locked cluster have been silent for so long. A cluster without agents is silent.

    A silence begins at the join, and never before the amnesty: after an outage of the servers, agents get time to call.
    """
    agents = clusters.agent_of(batch.tx, cluster_id)
    if not agents:
        return True
    amnesty_us = events.counters_read(batch.tx).get(AMNESTY_COUNTER, 0)
    seen = context.snapshots.seen
    heard_us = max(max(agent.seen_us or 0, agent.created_us, seen.get(agent.id, 0)) for agent in agents)
    return max(heard_us, amnesty_us) + for_us < batch.now_us
