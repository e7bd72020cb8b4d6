"""Show one cluster with the number of its leased and queued jobs. An operator who drains a cluster watches them."""

from __future__ import annotations

import msgspec

from switchyard.model.cluster.cluster import Cluster
from switchyard.service.cluster.clusters import cluster_view
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.store.files import file_outputs
from switchyard.store.jobs import backlog

BACKLOG_MAX = 10_000  # count at most so many jobs: a few milliseconds


def cluster_get(context: Context, actor: Actor, name: str) -> Cluster:
    member = visible_cluster(context, actor, name)
    cluster = cluster_view(context, member)
    with context.database.read() as tx:
        held = backlog.cluster_leased_count(tx, member.id)
        unsent = file_outputs.unsent_count(tx, member.id, None, now_us=context.now_us())
        in_line = backlog.backlog_count(tx, member.id, most=BACKLOG_MAX)
    return msgspec.structs.replace(cluster, held=held, unsent=unsent, in_line=in_line)
