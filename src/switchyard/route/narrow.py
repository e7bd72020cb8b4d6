"""The bounds of a request: a pool, a label, a pin and the grants. A cluster must be inside all that are given. Pure.

Weights come from the pool if there is one, else from the label, else from the clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.cluster.verdict import Answer
from switchyard.model.rules.layout import ClusterWeights
from switchyard.route.member import Member
from switchyard.route.roster import EquivalentClusters
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.verdicts import GroupVerdict
from switchyard.route.world import World

PINNED_ELSEWHERE = GroupVerdict(Answer.NO, "pin", "the request names other clusters")
PROMISED_ELSEWHERE = GroupVerdict(
    Answer.NO, "pin", "its submitter was told another cluster, or its execution runs on another one"
)
BEGUN_ELSEWHERE = GroupVerdict(Answer.NO, "pin", "its tasks stay together, and another cluster has begun them")
NOT_GRANTED = GroupVerdict(Answer.NO, "grant", "you have no grant to submit here")


@dataclass(frozen=True, slots=True)
class RoutingBounds:
    """The bounds of one request, looked up once for all clusters. A pool or label that is gone has no clusters."""

    ask: RoutingRequest
    pool: ClusterWeights | None
    label: ClusterWeights | None
    missing: str  # why a bound has no cluster any more; empty: all bounds have some
    not_in_pool: GroupVerdict
    not_labelled: GroupVerdict

    @staticmethod
    def of(ask: RoutingRequest, world: World) -> RoutingBounds:
        pool = None if ask.pool is None else _pool_with_spill(ask, world)
        label = None if ask.label is None else world.labels.get(ask.label, {})
        wider = f", nor in {', '.join(ask.spilled)}" if ask.spilled else ""
        outside = GroupVerdict(Answer.NO, "pool", f"not in pool {ask.pool}{wider}")
        return RoutingBounds(
            ask,
            pool,
            label,
            _missing_bound(ask, world),
            outside,
            GroupVerdict(Answer.NO, "label", f"not under label {ask.label}"),
        )

    def refuse(self, member: Member) -> GroupVerdict | None:
        """Return the verdict of the first bound that excludes the cluster; none: it is inside all of them."""
        if self.pool is not None and member.name not in self.pool:
            return self.not_in_pool
        if self.label is not None and member.name not in self.label:
            return self.not_labelled
        if self.ask.named is not None and member.id not in self.ask.named:
            return PINNED_ELSEWHERE
        if self.ask.settled is not None and member.id != self.ask.settled:
            return PROMISED_ELSEWHERE
        if self.ask.begun_on is not None and member.id != self.ask.begun_on:
            return BEGUN_ELSEWHERE
        return None if member.id in self.ask.granted else NOT_GRANTED

    def weight(self, member: Member) -> float:
        weights = self.pool if self.pool is not None else self.label
        return member.weight if weights is None else weights.get(member.name, 0.0)

    @property
    def source_of_weights(self) -> str:
        if self.pool is not None:
            return f"pool {self.ask.pool}"
        return f"label {self.ask.label}" if self.label is not None else "the world"


def refuse_zero_weights(
    bounds: RoutingBounds, evaluated: list[tuple[EquivalentClusters, GroupVerdict]]
) -> list[tuple[EquivalentClusters, GroupVerdict]]:
    """Refuse clusters of weight zero, unless all clusters that fit have it.

    Clusters that are down count, too: a cluster of weight zero does not take over when the others are down.
    """
    weights = [group.weight for group, verdict in evaluated if verdict.say is not Answer.NO]
    if all(weights) or not any(weights):
        return evaluated
    refusal = GroupVerdict(Answer.NO, "weight", f"has weight 0 in {bounds.source_of_weights}, and others have more")
    return [
        (group, refusal if verdict.say is not Answer.NO and not group.weight else verdict)
        for group, verdict in evaluated
    ]


def _pool_with_spill(ask: RoutingRequest, world: World) -> ClusterWeights:
    """The clusters of the pool and of the pools it has spilled to. The first pool of a cluster gives its weight."""
    pool = world.pools.get(ask.pool or "", {})
    if not ask.spilled:
        return pool
    weights: dict[str, float] = dict(pool)
    for name in ask.spilled:
        for cluster, weight in world.pools.get(name, {}).items():
            weights.setdefault(cluster, weight)
    return weights


def _missing_bound(ask: RoutingRequest, world: World) -> str:
    """Say which bound has no cluster any more; empty: none."""
    for word, name, sets in (("pool", ask.pool, world.pools), ("label", ask.label, world.labels)):
        if name is None:
            continue
        if name not in sets:
            return f"there is no {word} {name} any more"
        if not any(cluster in world.by_name for cluster in sets[name]):
            return f"the {word} {name} has no cluster" if not sets[name] else f"no cluster of {word} {name} is there"
    if ask.named and not any(cluster_id in world.by_id for cluster_id in ask.named):
        return "the cluster it names is gone"
    if ask.settled is not None and ask.settled not in world.by_id:
        return "the cluster that its submitter was told is gone"
    if ask.begun_on is not None and ask.begun_on not in world.by_id:
        return "the cluster that has begun its tasks is gone"
    return ""
