"""Pilots: ephemeral clusters whose join token is for one job. Only an agent inside of that job joins with the token.
The cluster ends with the job.

A token that was read in a queue, a spool or a backup is worthless. A joining agent must show that it runs in the job.
It writes a line into the job's output, and sends the secret that the line is the hash of. The agent of the cluster that
runs the job has sent that output here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from switchyard.errors import Conflict, ProofMissing, Unauthenticated
from switchyard.model.cluster.cluster import Invite
from switchyard.model.cluster.poll import Join, proof_line
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.log import Stream
from switchyard.service.cluster.agent_leave import UPKEEP_ACTOR, LeaderCommit, are_agents_silent, note_why_removed
from switchyard.service.cluster.clusters import invite_view, lock_invite, remove_registration
from switchyard.service.core.agents.credential import secret_matches
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.visibility import need_job_control, visible_job
from switchyard.store.clusters import clusters, group_invites
from switchyard.store.clusters.group_invites import PilotRow
from switchyard.store.jobs import jobs

# From the end of a pilot's job until jobs that ran in it may run again. Their processes end with the pilot's agent, two
# seconds after it at the latest (features/local/agent/supervisor.py).
JOBS_END_US = 5_000_000
PROOF_BYTES_MAX = 2**16  # of the job's output that are searched: programs that start an agent may print a little first


def bind_invite(context: Context, actor: Actor, invite_id: str, job: str) -> Invite:
    """Say which job a join token is for. Only once: a token that is known elsewhere cannot be given another job."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, job)
    need_job_control(actor, row)

    def apply(batch: Batch) -> Invite:
        invite, member = lock_invite(batch, context, actor, invite_id)
        if not invite.is_for_job:
            raise Conflict("The join token is not for a job.", next_step="Make one with `is_for_job`.")
        if invite.job_id not in (None, row.id):
            raise Conflict(f"The join token is for job {invite.job_id} already.", next_step="Make another token.")
        if invite.job_id is None:
            clusters.invite_change(batch.tx, invite_id, clusters.InviteUpdate(job_id=row.id))
            after = {"invite": invite_id, "job": row.id}
            record_audit(batch, context, actor, "invite.bind", member.name, after=after)
        changed = clusters.invite_lock(batch.tx, invite_id)
        assert changed is not None
        return invite_view(changed, member.name)

    return context.committer.call(apply)


def find_proof(context: Context, parts: tuple[str, str], request: Join) -> str | None:
    """Return the job in whose output the agent has shown itself; None: the token is for no job, or not valid.

    Not in the transaction of the join: the store of logs may be slow. Raises ProofMissing if the output does not show
    the agent, which may ask again, and Unauthenticated if the job has ended.
    """
    with context.database.read() as tx:
        invite = clusters.invite_peek(tx, parts[0])
        if invite is None or not invite.is_for_job or not secret_matches(parts[1], invite.token_hash):
            return None
        if invite.revoked_us is not None:
            return None
        row = jobs.job_get(tx, invite.job_id) if invite.job_id else None
        if invite.job_id is None:
            raise ProofMissing("The join token is for a job, and nobody has said yet for which.")
        if row is None or State(row.state) in FINAL_STATES:
            raise Unauthenticated(
                f"The join token is for job {invite.job_id}, which has ended.",
                next_step="Start another pilot with `yard pilot`.",
            )
        stream = Stream(row.id, row.fence, "stdout")
        pieces, _ = context.logs.read(tx, stream, 0, bytes_max=PROOF_BYTES_MAX)
    if request.proof is None or proof_line(request.proof).encode() not in _lines(pieces):
        raise ProofMissing(f"The join token is for job {row.id}, and the job's output does not show this agent.")
    return row.id


def _lines(pieces: Sequence[tuple[int, bytes]]) -> list[bytes]:
    return b"".join(data for _, data in pieces).splitlines()


def end_pilots(context: Context, commit: LeaderCommit) -> int:
    """Remove the clusters of pilots whose jobs have ended. Returns their number.

    What an agent still had is lost with the reason of the pilot's job, and each job's `on_lost` decides.
    """
    ephemeral = [row.id for row in context.snapshots.fleet.rows.values() if row.is_ephemeral]
    if not ephemeral:
        return 0
    with context.database.read() as tx:
        rows = group_invites.pilot_list(tx, ephemeral, now_us=context.now_us())
    rows.sort(key=lambda row: row.cluster_id)
    return sum(
        _remove(context, commit, cluster_id)
        for cluster_id, group in groupby(rows, lambda row: row.cluster_id)
        if _ended_job(list(group)) is not None
    )


def _ended_job(rows: Sequence[PilotRow]) -> PilotRow | None:
    """Return the pilot that ended, if nothing else belongs to its cluster; None: the cluster stays.

    A cluster that other agents joined, or can join, stays until these agents leave.
    """
    ended = [row for row in rows if row.job_id and (row.state is None or State(row.state) in FINAL_STATES)]
    others = [row for row in rows if row not in ended]
    if not ended or any(row.is_usable or row.uses or row.job_id for row in others):
        return None
    return ended[-1]


def _remove(context: Context, commit: LeaderCommit, cluster_id: str) -> int:
    def apply(batch: Batch) -> int:
        row = clusters.cluster_lock(batch.tx, cluster_id)
        member = context.snapshots.world.by_id.get(cluster_id)
        pilot = _ended_job(group_invites.pilot_list(batch.tx, [cluster_id], now_us=batch.now_us))
        if row is None or member is None or pilot is None:
            return 0
        # The job has ended, but was its agent not in it any more? One that still calls keeps its cluster.
        if not are_agents_silent(batch, context, cluster_id, for_us=context.snapshots.silent_after_us):
            return 0
        agents = clusters.agent_of(batch.tx, cluster_id)
        if agents and pilot.ended_us is not None and batch.now_us < pilot.ended_us + JOBS_END_US:
            return 0
        why = f"the pilot's job {pilot.job_id} ended" + (f" as {pilot.state}" if pilot.state else "")
        why += f": {pilot.reason}" if pilot.reason else ""
        note_why_removed(batch, [agent.id for agent in agents], why)
        remove_registration(batch, context, member, by=UPKEEP_ACTOR, abandon_jobs=True, abandon_outputs=True)
        return 1

    return commit(context, apply)
