"""The step after the router's answer: one table of cases for every caller."""

from __future__ import annotations

from itertools import product

import pytest

from switchyard.route.placement import NeedStatus, Placement, decide_placement

NONE, MET, UNMET = NeedStatus.NONE, NeedStatus.MET, NeedStatus.UNMET


@pytest.mark.parametrize(
    ("outcome", "asks", "is_blocked", "place", "tokens", "expected"),
    [
        ("reject", False, False, NONE, NONE, Placement.REJECT),
        ("reject", False, True, UNMET, UNMET, Placement.REJECT),
        ("assign", False, True, NONE, NONE, Placement.BLOCK),
        ("hold", False, True, NONE, NONE, Placement.BLOCK),
        ("hold", True, True, NONE, NONE, Placement.BLOCK),
        ("hold", True, False, UNMET, UNMET, Placement.ASK_QUOTES),
        ("hold", False, False, MET, MET, Placement.WAIT),
        ("assign", False, False, UNMET, NONE, Placement.QUEUE),
        ("assign", False, False, UNMET, UNMET, Placement.QUEUE),
        ("assign", False, False, UNMET, MET, Placement.QUEUE),
        ("assign", False, False, NONE, UNMET, Placement.WAIT_TOKENS),
        ("assign", False, False, MET, UNMET, Placement.WAIT_TOKENS),
        ("assign", False, False, NONE, NONE, Placement.ASSIGN),
        ("assign", False, False, MET, MET, Placement.ASSIGN),
    ],
)
def test_the_first_rule_that_applies_wins(
    outcome: str, asks: bool, is_blocked: bool, place: NeedStatus, tokens: NeedStatus, expected: Placement
) -> None:
    assert decide_placement(outcome, asks=asks, is_blocked=is_blocked, place=place, tokens=tokens) is expected


def test_an_array_with_live_tasks_is_not_rejected() -> None:
    decided = decide_placement("reject", asks=False, is_blocked=False, place=NONE, tokens=NONE, has_live_tasks=True)
    assert decided is Placement.WAIT


def test_a_job_is_assigned_only_with_all_that_it_needs() -> None:
    for outcome, asks, is_blocked, place, tokens in product(
        ("assign", "hold", "reject"), (False, True), (False, True), NeedStatus, NeedStatus
    ):
        decided = decide_placement(outcome, asks=asks, is_blocked=is_blocked, place=place, tokens=tokens)
        may_go = outcome == "assign" and not asks and not is_blocked and UNMET not in (place, tokens)
        assert (decided is Placement.ASSIGN) is may_go
