"""Jobs of one user that take long to decide hold up nobody else's: their time in one round has a bound."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import clusters
from switchyard.service.core.rights import Actor
from switchyard.service.placement import evaluation
from switchyard.service.placement.route_budget import OWNER_ROUND_S, REST_FACTOR, RouteBudget
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig

SLOW_S = OWNER_ROUND_S / 2  # for one decision: three fill a round


class SlowDecisions:
    """Time passes only by decisions about the jobs of one user."""

    def __init__(self, rig: Rig, slow: Actor) -> None:
        self.at_s = 0.0
        self.decided: list[str] = []
        self._rig, self._slow = rig, slow
        self._really = evaluation.evaluate_again
        self.budget = RouteBudget(clock=lambda: self.at_s)

    def evaluate(self, context: Any, world: Any, row: Any, *rest: Any) -> Any:
        self.decided.append(row.id)
        self.at_s += SLOW_S if row.owner_id == self._slow.id else 0.0
        return self._really(context, world, row, *rest)

    def round(self, *, is_news: bool) -> tuple[list[str], int]:
        """The jobs that one round decided, and how many it routed."""
        self.decided = []
        self.budget.begin(is_news=is_news)
        with patch.object(evaluation, "evaluate_again", self.evaluate):
            routed = route_pending(self._rig.context, self._rig.leader, budget=self.budget)
        self.budget.end()
        return self.decided, routed


def a_submitter(rig: Rig, name: str) -> Actor:
    return rig.user(name, (Role.SUBMIT, GrantTarget.PROJECT, "default"), (Role.SUBMIT, GrantTarget.CLUSTER, "alpha"))


def a_held_up_rig(rig: Rig) -> tuple[list[str], str, SlowDecisions]:
    """Seven jobs of col's that take long, then one of ann's; their cluster is cordoned."""
    rig.cluster("alpha")
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    col, ann = a_submitter(rig, "col"), a_submitter(rig, "ann")
    slow = [
        rig.submit(a_request(f"slow-{number}", cores=1, env={"N": str(number)}), actor=col).id for number in range(7)
    ]
    quick = rig.submit(a_request("quick"), actor=ann).id
    return slow, quick, SlowDecisions(rig, col)


def test_a_users_slow_jobs_are_decided_some_in_each_round(rig: Rig) -> None:
    slow, quick, decisions = a_held_up_rig(rig)
    assert decisions.round(is_news=True) == ([*slow[:3], quick], 0)
    assert decisions.budget.is_left
    assert decisions.budget.heavy_s == 3 * SLOW_S
    assert decisions.budget.rest_until == decisions.at_s + REST_FACTOR * 3 * SLOW_S
    assert decisions.round(is_news=False) == ([quick], 0), "they rest"
    decisions.at_s = decisions.budget.rest_until
    assert decisions.round(is_news=False) == ([*slow[3:6], quick], 0)
    decisions.at_s = decisions.budget.rest_until
    assert decisions.round(is_news=False) == ([slow[6], quick], 0)
    assert not decisions.budget.is_left


def test_another_users_job_is_routed_while_they_rest_and_they_are_looked_at_again(rig: Rig) -> None:
    slow, quick, decisions = a_held_up_rig(rig)
    decisions.round(is_news=True)
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    assert decisions.round(is_news=True) == ([quick], 1)
    assert rig.job(quick).cluster == "alpha"
    routed = 0
    for _ in range(10):
        decisions.at_s = decisions.budget.rest_until
        if decisions.budget.is_left:
            routed += decisions.round(is_news=False)[1]
    assert routed == 7, "the first three were decided before the cluster came back"
    assert {rig.job(job_id).cluster for job_id in slow} == {"alpha"}
    assert not decisions.budget.is_left
