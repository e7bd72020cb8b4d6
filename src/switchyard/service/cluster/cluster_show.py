"""One cluster, with how much of ours it has: whoever drains it watches that."""

from __future__ import annotations

import msgspec

from switchyard.model.cluster import Cluster
from switchyard.service.cluster.clusters import cluster_view, visible_cluster
from switchyard.service.context import Context
from switchyard.service.rights import Actor
from switchyard.store import backlog

LINE_MAX = 10_000  # counted so far: some milliseconds


def cluster_get(context: Context, actor: Actor, name: str) -> Cluster:
    member = visible_cluster(context, actor, name)
    found = cluster_view(context, member)
    with context.database.read() as tx:
        held, in_line = backlog.cluster_leased_count(tx, member.id), backlog.backlog_count(tx, member.id, most=LINE_MAX)
    return msgspec.structs.replace(found, held=held, in_line=in_line)
