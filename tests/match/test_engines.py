"""Both engines answer alike, and as trying every placement would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings

from switchyard.match.demand import Demand, NeedKind
from switchyard.match.engine import Match, engine
from switchyard.model.graph import Graph
from tests.match import brute
from tests.match.strategies import demands, graphs

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
EXAMPLES = 150  # `make soak` tries 10,000 of each


def agree(demand: Demand, graph: Graph) -> None:
    shapes, walk = engine("shapes").satisfy(demand, graph), engine("walk").satisfy(demand, graph)
    assume(not any(isinstance(found, Match) and found.undecided for found in (shapes, walk)))
    event(type(shapes).__name__)
    assert shapes == walk


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW)
@given(demands(most=3), graphs(most=4))
def test_both_engines_answer_alike(demand: Demand, graph: Graph) -> None:
    agree(demand, graph)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, deadline=None, suppress_health_check=SLOW)
@given(demands(most=4), graphs(most=4))
def test_both_engines_answer_alike_for_long(demand: Demand, graph: Graph) -> None:
    agree(demand, graph)


def units(demand: Demand) -> int:
    def count(needs, times=1):
        return sum(need.count * times + count(need.holds, need.count * times) for need in needs)

    return count(demand.needs)


def is_as_tried(demand: Demand, graph: Graph) -> None:
    """Exact, tiny: the whole space of placements is gone through."""
    assume(units(demand) <= 9 and graph.vertices <= 22)
    found = engine("shapes").satisfy(demand, graph)
    assume(not (isinstance(found, Match) and found.undecided))
    assert isinstance(found, Match) == brute.fits(demand, graph), found
    if demand.nodes is not None:  # slots are counted on nodes then, not in what stands beside them
        return
    if len(demand.needs) == 1 and demand.needs[0].kind is NeedKind.SLOT and found.slots is not None and found.slots < 6:
        task = demand.needs[0]
        for slots, is_so in ((found.slots, True), (found.slots + 1, False)):
            asked = replace(demand, needs=(replace(task, count=slots),) if slots else ())
            if units(asked) <= 12:
                assert brute.fits(asked, graph) == is_so


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW)
@given(demands(most=2), graphs(most=2))
def test_the_answer_is_that_of_trying_every_placement(demand: Demand, graph: Graph) -> None:
    is_as_tried(demand, graph)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, deadline=None, suppress_health_check=SLOW)
@given(demands(most=2), graphs(most=2))
def test_the_answer_is_that_of_trying_every_placement_for_long(demand: Demand, graph: Graph) -> None:
    is_as_tried(demand, graph)
