"""What a quote counts as, and whom to ask."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.route.quote_estimate import (
    HALF_TRUST_ERROR_S,
    MEASURED_STARTS_MIN,
    BacklogWork,
    QuoteAccuracy,
    backlog_s,
    clusters_to_ask,
    estimate_cost,
    expected_start_s,
)
from switchyard.route.select.weighted_draw import WeightedCandidates

US = 1_000_000


def track(error_s: float, starts: int = MEASURED_STARTS_MIN) -> QuoteAccuracy:
    return QuoteAccuracy.of([round(error_s * US)] * starts)


@pytest.mark.parametrize(
    ("eta_s", "known", "confidence", "waiting_s", "counts_s"),
    [
        (0, QuoteAccuracy(), 1.0, 0, 0),
        (100, QuoteAccuracy(), 0.5, 0, 200),  # half as sure, twice as long
        (100, QuoteAccuracy(), 1.0, 50, 150),  # and what waits there before it
        (0, track(HALF_TRUST_ERROR_S, starts=MEASURED_STARTS_MIN - 1), 1.0, 0, 0),  # too few starts to say anything
        (0, track(HALF_TRUST_ERROR_S), 1.0, 0, 2 * HALF_TRUST_ERROR_S),  # always so late, and half as sure
        (0, track(6 * HALF_TRUST_ERROR_S), 1.0, 0, 6 * HALF_TRUST_ERROR_S * 7),
        (
            100,
            track(-HALF_TRUST_ERROR_S),
            1.0,
            0,
            200,
        ),  # sooner than quoted is no merit, but not to be relied on either
        (1, QuoteAccuracy(), 0.0, 0, 100),  # never endless
    ],
)
def test_what_a_quote_counts_as(
    eta_s: float, known: QuoteAccuracy, confidence: float, waiting_s: float, counts_s: float
) -> None:
    found = expected_start_s(eta_s, track=known, confidence=confidence, line_s=waiting_s)
    assert found == pytest.approx(counts_s)


def test_a_cluster_that_always_says_now_and_is_late_loses_to_an_honest_one() -> None:
    late = expected_start_s(0, track=track(1200), confidence=1, line_s=0)
    honest = expected_start_s(900, track=track(30), confidence=0.8, line_s=0)
    assert honest < late


@given(st.lists(st.integers(-(10**12), 10**12), max_size=100))
def test_trust_is_between_nothing_and_all(errors_us: list[int]) -> None:
    found = QuoteAccuracy.of(errors_us)
    assert 0 < found.trust <= 1
    assert found.late_s >= 0


@pytest.mark.parametrize(
    ("line", "asks", "free", "waits_s"),
    [
        ([], 4, 0, 0),
        ([BacklogWork(2, 600)], 1, 4, 0),  # there is room for both
        ([BacklogWork(2, 600)], 4, 4, 300),  # 1,200 core seconds on four cores
        ([BacklogWork(2, 600, jobs=10)], 4, 4, 3000),
        ([BacklogWork(2, None)], 4, 4, 30),  # without a limit: a minute
        ([BacklogWork(2, 600)], 1, None, 300),  # nobody says what is free
    ],
)
def test_what_waits_before_a_job_takes_its_time(
    line: list[BacklogWork], asks: int, free: int | None, waits_s: float
) -> None:
    assert backlog_s(line, asks=asks, free=free, cores=4) == pytest.approx(waits_s)


def test_at_most_so_many_are_asked_and_the_same_for_one_shape() -> None:
    able = WeightedCandidates.of([f"c{number}" for number in range(50)], [1.0] * 50)
    first = clusters_to_ask(able, seed="shape", most=8)
    assert len(set(first)) == 8
    assert first == clusters_to_ask(able, seed="shape", most=8)
    assert clusters_to_ask(able, seed="another", most=8) != first
    assert able.names[able.draw("shape")] == first[0], "the winner of the draw is asked first"
    ten = WeightedCandidates.of([f"c{number}" for number in range(10)], [1.0] * 10)
    assert clusters_to_ask(ten, seed="shape", most=8)[0] == ten.names[ten.draw("shape")]
    few = WeightedCandidates.of(["a", "b"], [1.0, 0.0])
    assert clusters_to_ask(few, seed="shape", most=8) == ("a", "b")


def test_who_weighs_more_is_asked_more_often() -> None:
    able = WeightedCandidates.of(
        [f"c{number}" for number in range(20)], [10.0 if number < 4 else 1.0 for number in range(20)]
    )
    asked = Counter(name for seed in range(500) for name in clusters_to_ask(able, seed=str(seed), most=8))
    assert min(asked[f"c{number}"] for number in range(4)) > 2 * max(asked[f"c{number}"] for number in range(4, 20))


@pytest.mark.parametrize(
    ("nodes", "limit_s", "cost"), [(2, 1800, 3.0), (0.5, 3600, 1.5), (1, None, 3.0)], ids=["nodes", "part", "no limit"]
)
def test_what_a_job_costs(nodes: float, limit_s: float | None, cost: float) -> None:
    assert estimate_cost(3.0, nodes=nodes, limit_s=limit_s) == pytest.approx(cost)
