"""The weights of clusters in the draw: of the pool if there is one, else of the label, else their own. Pure.

A pool or label that is gone has no clusters.
"""

from __future__ import annotations

from collections.abc import Callable

from switchyard.model.cluster.verdict import Answer
from switchyard.model.rules.layout import ClusterWeights
from switchyard.route.member import Member
from switchyard.route.roster import EquivalentClusters
from switchyard.route.routing_request import ClusterBounds, RoutingRequest
from switchyard.route.verdicts import GroupVerdict
from switchyard.route.world import World


def clusters_of_pool(bounds: ClusterBounds, world: World) -> ClusterWeights | None:
    """Return the clusters of the pool and of the pools it has spilled to; none: the job has no pool.

    The first pool of a cluster gives its weight.
    """
    if bounds.pool is None:
        return None
    pool = world.pools.get(bounds.pool, {})
    if not bounds.spilled:
        return pool
    weights: dict[str, float] = dict(pool)
    for name in bounds.spilled:
        for cluster, weight in world.pools.get(name, {}).items():
            weights.setdefault(cluster, weight)
    return weights


def clusters_of_label(bounds: ClusterBounds, world: World) -> ClusterWeights | None:
    return None if bounds.label is None else world.labels.get(bounds.label, {})


def weight_in(bounds: ClusterBounds, world: World) -> Callable[[Member], float]:
    """Return a function that gives the weight of a cluster for requests with these bounds."""
    weights = clusters_of_pool(bounds, world)
    if weights is None:
        weights = clusters_of_label(bounds, world)
    if weights is None:
        return lambda member: member.weight
    return lambda member: weights.get(member.name, 0.0)


def refuse_zero_weights(
    ask: RoutingRequest, evaluated: list[tuple[EquivalentClusters, GroupVerdict]]
) -> list[tuple[EquivalentClusters, GroupVerdict]]:
    """Refuse clusters of weight zero, unless all clusters that fit have it.

    Clusters that are down count, too: a cluster of weight zero does not take over when the others are down.
    """
    weights = [group.weight for group, verdict in evaluated if verdict.say is not Answer.NO]
    if all(weights) or not any(weights):
        return evaluated
    refusal = GroupVerdict(Answer.NO, "weight", f"has weight 0 in {_source_of_weights(ask)}, and others have more")
    return [
        (group, refusal if verdict.say is not Answer.NO and not group.weight else verdict)
        for group, verdict in evaluated
    ]


def _source_of_weights(ask: RoutingRequest) -> str:
    if ask.bounds.pool is not None:
        return f"pool {ask.bounds.pool}"
    return f"label {ask.bounds.label}" if ask.bounds.label is not None else "the world"


def missing_bound(ask: RoutingRequest, world: World) -> str:
    """Say which bound has no cluster any more; empty: none."""
    bounds = ask.bounds
    for word, name, sets in (("pool", bounds.pool, world.pools), ("label", bounds.label, world.labels)):
        if name is None:
            continue
        if name not in sets:
            return f"there is no {word} {name} any more"
        if not any(cluster in world.by_name for cluster in sets[name]):
            return f"the {word} {name} has no cluster" if not sets[name] else f"no cluster of {word} {name} is there"
    if bounds.named and not any(cluster_id in world.by_id for cluster_id in bounds.named):
        return "the cluster it names is gone"
    if bounds.settled is not None and bounds.settled not in world.by_id:
        return "the cluster that its submitter was told is gone"
    if bounds.begun_on is not None and bounds.begun_on not in world.by_id:
        return "the cluster that has begun its tasks is gone"
    return ""
