"""A sample of a cluster: its health and load as they are now, in the form that is stored."""

from __future__ import annotations

from switchyard.route.member import Member
from switchyard.service.core.context import Context
from switchyard.store.clusters.cluster_samples import ClusterSample


def sample_of(context: Context, member: Member, now_us: int) -> ClusterSample:
    """A cluster as it is now."""
    load = context.snapshots.load_of(member.id)
    totals = member.graph.totals if member.graph else {}
    cores, gpus = totals.get("core", 0), totals.get("gpu", 0)
    return ClusterSample(
        cluster_id=member.id,
        at_us=now_us,
        health=member.health.value,
        cores=cores,
        cores_used=None if load is None or load.free_cores is None else max(0, cores - load.free_cores),
        gpus=gpus,
        gpus_used=None if load is None or load.free_gpus is None else max(0, gpus - load.free_gpus),
        running=None if load is None else load.running,
        queued=None if load is None else load.queued,
    )
