"""The step after the router's answer: one table of cases for every caller."""

from __future__ import annotations

from itertools import product

import pytest

from switchyard.model.cluster.verdict import Outcome
from switchyard.service.placement.decision import Placement, next_step

REJECT, HOLD, ASSIGN = Outcome.REJECT, Outcome.HOLD, Outcome.ASSIGN


@pytest.mark.parametrize(
    ("outcome", "asks", "is_blocked", "lacks_place", "lacks_tokens", "expected"),
    [
        (REJECT, False, False, False, False, Placement.REJECT),
        (REJECT, False, True, True, True, Placement.REJECT),
        (ASSIGN, False, True, False, False, Placement.BLOCK),
        (HOLD, False, True, False, False, Placement.BLOCK),
        (HOLD, True, True, False, False, Placement.BLOCK),
        (HOLD, True, False, True, True, Placement.ASK_QUOTES),
        (HOLD, False, False, False, False, Placement.WAIT),
        (ASSIGN, False, False, True, False, Placement.QUEUE),
        (ASSIGN, False, False, True, True, Placement.QUEUE),
        (ASSIGN, False, False, False, True, Placement.WAIT_TOKENS),
        (ASSIGN, False, False, False, False, Placement.ASSIGN),
    ],
)
def test_the_first_rule_that_applies_wins(
    outcome: Outcome, asks: bool, is_blocked: bool, lacks_place: bool, lacks_tokens: bool, expected: Placement
) -> None:
    lacks = {"lacks_place": lacks_place, "lacks_tokens": lacks_tokens}
    assert next_step(outcome, asks=asks, is_blocked=is_blocked, **lacks) is expected


def test_an_array_with_live_tasks_is_not_rejected() -> None:
    lacks = {"lacks_place": False, "lacks_tokens": False}
    assert next_step(REJECT, asks=False, is_blocked=False, **lacks, has_live_tasks=True) is Placement.WAIT


def test_a_job_is_assigned_only_with_all_that_it_needs() -> None:
    for outcome, facts in product(Outcome, product((False, True), repeat=4)):
        asks, is_blocked, lacks_place, lacks_tokens = facts
        step = next_step(outcome, asks=asks, is_blocked=is_blocked, lacks_place=lacks_place, lacks_tokens=lacks_tokens)
        assert (step is Placement.ASSIGN) is (outcome is ASSIGN and not any(facts))
