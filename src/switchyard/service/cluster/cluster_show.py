"""Show one cluster: the number of its leased and queued jobs, and its health and load over the last hours or days."""

from __future__ import annotations

import msgspec

from switchyard.model.cluster.cluster import Cluster
from switchyard.service.cluster.clusters import cluster_view
from switchyard.service.core.agents.cluster_state import sample_of
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.store.clusters import cluster_samples
from switchyard.store.clusters.cluster_samples import ClusterSample
from switchyard.store.files import file_outputs
from switchyard.store.jobs import backlog

BACKLOG_MAX = 10_000  # count at most so many jobs: a few milliseconds
SAMPLES_MAX = 5000  # a week of samples, every five minutes, and many changes of health


def cluster_get(context: Context, actor: Actor, name: str) -> Cluster:
    member = visible_cluster(context, actor, name)
    cluster = cluster_view(context, member, actor)
    with context.database.read() as tx:
        held = backlog.cluster_leased_count(tx, member.id)
        unsent = file_outputs.unsent_count(tx, member.id, None, now_us=context.now_us())
        in_line = backlog.backlog_count(tx, member.id, most=BACKLOG_MAX)
    return msgspec.structs.replace(cluster, held=held, unsent=unsent, in_line=in_line)


def cluster_history(context: Context, actor: Actor, name: str, *, since_s: int) -> list[ClusterSample]:
    """Return the samples of the last `since_s` seconds, oldest first, and the cluster as it is now."""
    member = visible_cluster(context, actor, name)
    now_us = context.now_us()
    with context.database.read() as tx:
        samples = cluster_samples.samples_since(tx, member.id, since_us=now_us - since_s * 1_000_000, limit=SAMPLES_MAX)
    return [*(sample for sample in samples if sample.at_us < now_us), sample_of(context, member, now_us)]
