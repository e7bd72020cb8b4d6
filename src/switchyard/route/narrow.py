"""Who may run a job, before anybody asks who could: a pool bounds, a label narrows, a pin names, grants always hold.

All that are given apply together. Weights come from the pool where there is one, else from the label.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.layout import ClusterWeights
from switchyard.model.verdict import Answer
from switchyard.route.roster import EquivalentClusters
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.verdicts import GroupVerdict
from switchyard.route.world import Member, World

PINNED_ELSEWHERE = GroupVerdict(Answer.NO, "pin", "the request names other clusters")
PROMISED_ELSEWHERE = GroupVerdict(Answer.NO, "pin", "its submitter was told another cluster")
NOT_GRANTED = GroupVerdict(Answer.NO, "grant", "you have no grant to submit here")


@dataclass(frozen=True, slots=True)
class RoutingBounds:
    """The bounds of one ask, looked up once for all clusters. A set that is gone has no members: it fails closed."""

    ask: RoutingRequest
    pool: ClusterWeights | None
    label: ClusterWeights | None
    missing: str  # what the job is bounded to and is no more
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
        """The first of these steps that says no, if one does."""
        if self.pool is not None and member.name not in self.pool:
            return self.not_in_pool
        if self.label is not None and member.name not in self.label:
            return self.not_labelled
        if self.ask.named is not None and member.id not in self.ask.named:
            return PINNED_ELSEWHERE
        if self.ask.settled is not None and member.id != self.ask.settled:
            return PROMISED_ELSEWHERE
        return None if member.id in self.ask.granted else NOT_GRANTED

    def weight(self, member: Member) -> float:
        weights = self.pool if self.pool is not None else self.label
        return member.weight if weights is None else weights.get(member.name, 0.0)

    @property
    def whose_weights(self) -> str:
        if self.pool is not None:
            return f"pool {self.ask.pool}"
        return f"label {self.ask.label}" if self.label is not None else "the world"


def refuse_zero_weights(
    bound: RoutingBounds, judged: list[tuple[EquivalentClusters, GroupVerdict]]
) -> list[tuple[EquivalentClusters, GroupVerdict]]:
    """A weight of zero is never drawn unless all that are left have it. Judged before health: what weighs nothing does
    not take over when the others are down."""
    left = [group.weight for group, told in judged if told.say is not Answer.NO]
    if all(left) or not any(left):
        return judged
    passed_over = GroupVerdict(Answer.NO, "weight", f"has weight 0 in {bound.whose_weights}, and others have more")
    return [(group, passed_over if told.say is not Answer.NO and not group.weight else told) for group, told in judged]


def _pool_with_spill(ask: RoutingRequest, world: World) -> ClusterWeights:
    """The pool with those it has spilled to. Whoever is in several has the weight of the first."""
    own = world.pools.get(ask.pool or "", {})
    if not ask.spilled:
        return own
    found: dict[str, float] = dict(own)
    for name in ask.spilled:
        for member, weight in world.pools.get(name, {}).items():
            found.setdefault(member, weight)
    return found


def _missing_bound(ask: RoutingRequest, world: World) -> str:
    """What was there when the job came, in words; empty where nothing is missing."""
    for word, name, sets in (("pool", ask.pool, world.pools), ("label", ask.label, world.labels)):
        if name is None:
            continue
        if name not in sets:
            return f"there is no {word} {name} any more"
        if not any(each in world.by_name for each in sets[name]):
            return f"the {word} {name} has no cluster" if not sets[name] else f"no cluster of {word} {name} is there"
    if ask.named and not any(cluster_id in world.by_id for cluster_id in ask.named):
        return "the cluster it names is gone"
    if ask.settled is not None and ask.settled not in world.by_id:
        return "the cluster that its submitter was told is gone"
    return ""
