"""What an operator does about the probation of a cluster."""

from __future__ import annotations

from switchyard.errors import Conflict
from switchyard.model.cluster.cluster import Cluster
from switchyard.model.cluster.probation import ProbationAction, ProbationChange
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.cluster.cluster_show import cluster_get
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.probation import begin_probation, confirm_probation, exempt_cluster
from switchyard.store.clusters import probations as store


def probation_change(context: Context, actor: Actor, name: str, change: ProbationChange) -> Cluster:
    member = visible_cluster(context, actor, name)
    actor.need_cluster(Role.OPERATE, member)

    def apply(batch: Batch) -> None:
        _change(context, batch, member, change, by=actor.name)
        bump_version(batch, Topic.PROBATION)
        batch.clusters.add(member.id)
        after = {"action": change.action, "reason": change.reason}
        record_audit(batch, context, actor, "cluster.probation", name, after=after)

    context.committer.call(apply)
    return cluster_get(context, actor, name)


def _change(context: Context, batch: Batch, member: Member, change: ProbationChange, *, by: str) -> None:
    rows = store.probation_lock(batch.tx, [member.id])
    off = [row for row in rows if row.state == "off"]
    if change.action is ProbationAction.CONFIRM:
        if off:
            raise Conflict(
                f"The cluster {member.name} is exempt from probation.",
                next_step=f"`yard cluster probation {member.name} --on` ends that; then confirm.",
            )
        reason = f"confirmed by {by}" + (f": {change.reason}" if change.reason else "")
        terms, key = context.probation, (member.id, "", "")
        row = begin_probation(None, key=key, subject="", reason=reason, terms=terms, now_us=batch.now_us)
        store.probation_put(batch.tx, [confirm_probation(row)])
        return
    if change.action is ProbationAction.ON:
        store.probation_delete(batch.tx, off)
        return
    store.probation_delete(batch.tx, [row for row in rows if row.state != "off"])
    store.evidence_forget(batch.tx, cluster_id=member.id)
    if change.action is ProbationAction.OFF:
        reason = change.reason or f"switched off by {by}"
        store.probation_put(batch.tx, [exempt_cluster(member.id, reason, batch.now_us)])
