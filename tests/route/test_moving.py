"""When a job goes to another cluster although its own is well: who is idle, who takes, what is clearly better."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.quote import Quote, QuoteOutcome
from switchyard.model.cluster.verdict import Outcome
from switchyard.route.moving import (
    BacklogJobs,
    FreeCapacity,
    MovingSettings,
    find_better_quote,
    is_clearly_better,
    pick_taker,
    rest_time_us,
)
from switchyard.route.router import Eligibility
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import VerdictSet

TERMS = MovingSettings(gain_s=60, gain_cost=2, gain_share=0.25)


def an_eligibility(*names: str, **fields: Any) -> Eligibility:
    weights = fields.pop("weights", [1.0] * len(names))
    return Eligibility(
        Outcome.ASSIGN if names else Outcome.HOLD,
        WeightedCandidates.of(list(names), weights),
        VerdictSet.of([]),
        "",
        **fields,
    )


@pytest.mark.parametrize(
    ("load", "spare"),
    [
        (None, None),
        (Load(), None),
        (Load(free_cores=0), None),
        (Load(free_cores=2, queued=1), None),
        (Load(free_cores=2, trouble="no disk"), None),
        (Load(free_cores=2, running=9), FreeCapacity(2, 0, None)),
        (Load(free_cores=2, free_gpus=1, free_memory_bytes=5), FreeCapacity(2, 1, 5)),
    ],
)
def test_who_is_idle(load: Load | None, spare: FreeCapacity | None) -> None:
    assert FreeCapacity.of(load) == spare


def test_what_was_given_is_no_longer_spare() -> None:
    spare = FreeCapacity(4, 1, 100)
    assert spare.holds(cores=4, gpus=1, memory_bytes=100)
    assert not spare.holds(cores=4, gpus=1, memory_bytes=101)
    assert spare.less(cores=3, gpus=1, memory_bytes=40) == FreeCapacity(1, 0, 60)
    assert FreeCapacity(4, 0, None).holds(cores=1, gpus=0, memory_bytes=2**60)


A_GPU: dict[str, Any] = {"cores": 4, "gpus": 1, "memory_bytes": 10, "is_array": False, "is_aged": False}


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ([], FreeCapacity(20, 2, 100)),
        ([BacklogJobs(1, **A_GPU)], FreeCapacity(16, 1, 90)),
        ([BacklogJobs(50, **A_GPU)], FreeCapacity(12, 0, 80)),
        ([BacklogJobs(1, **A_GPU | {"is_array": True})], FreeCapacity(12, 0, 80)),
        ([BacklogJobs(50, **A_GPU | {"cores": 30})], FreeCapacity(20, 2, 100)),
        ([BacklogJobs(1, **A_GPU | {"cores": 30, "is_aged": True})], FreeCapacity(0, 2, 100)),
        ([BacklogJobs(1, **A_GPU | {"is_aged": True})], FreeCapacity(16, 1, 90)),
        ([BacklogJobs(2, **A_GPU), BacklogJobs(1, **A_GPU | {"cores": 20})], FreeCapacity(0, 0, 70)),
    ],
    ids=["nobody", "one", "more than fit", "an array", "too large", "too large for long", "it fits", "either fits"],
)
def test_what_a_line_leaves_to_others(line: list[BacklogJobs], left: FreeCapacity) -> None:
    assert FreeCapacity(20, 2, 100).beside(line, is_busy=True) == left


def test_nothing_is_kept_where_nothing_runs_whose_end_makes_room() -> None:
    line = [BacklogJobs(1, **A_GPU | {"cores": 30, "is_aged": True})]
    assert FreeCapacity(20, 2, None).beside(line, is_busy=False) == FreeCapacity(20, 2, None)


def test_the_rest_grows_with_the_hand_overs_up_to_a_bound() -> None:
    assert [rest_time_us(30, times) for times in (1, 4, 5, 6, 10, 99)] == [30, 30, 60, 120, 1920, 1920]


def test_who_takes_over() -> None:
    assert pick_taker(an_eligibility("a", "b", "c"), ["b"], seed="j") == "b"
    assert pick_taker(an_eligibility("a", "b"), ["x"], seed="j") is None
    assert pick_taker(an_eligibility("a", "b"), [], seed="j") is None
    assert pick_taker(an_eligibility(), ["a"], seed="j") is None, "it may not run anywhere"
    drawn = [pick_taker(an_eligibility("a", "b", weights=[1.0, 9.0]), ["a", "b"], seed=f"job {n}") for n in range(500)]
    assert 400 < drawn.count("b") < 490, "by weight"
    sorted_by_steps = an_eligibility("a", remaining=("c", "b", "a"))
    assert pick_taker(sorted_by_steps, ["a", "b"], seed="j") == "b", "the first that the algorithm left"


@pytest.mark.parametrize(
    ("other", "now", "is_better"),
    [(0, 60, True), (0, 59, False), (540, 600, False), (450, 600, True), (900, 600, False), (600, 600, False)],
)
def test_clearly_better_is_by_an_amount_and_by_a_share(other: float, now: float, is_better: bool) -> None:
    assert is_clearly_better(other, now, gain=60, share=0.25) == is_better


def yes(cluster: str, **fields: Any) -> Quote:
    return Quote(cluster=cluster, said=QuoteOutcome.YES, **fields)


HERE = yes("here", eta_s=600, starts_s=9999, cost=10)
NO = Quote(cluster="here", said=QuoteOutcome.NO, reason="drained at noon")
QUOTED: list[tuple[str, str, list[Quote], str | None]] = [
    ("much sooner", "soonest", [HERE, yes("there", starts_s=30)], "there could begin it in 30 s, here in 600 s"),
    ("a little sooner", "soonest", [HERE, yes("there", starts_s=550)], None),
    ("sooner only by the line here", "soonest", [HERE, yes("there", starts_s=700)], None),
    ("much cheaper", "cheapest", [HERE, yes("there", cost=4)], "there would run it for 4, here for 10"),
    ("a little cheaper", "cheapest", [HERE, yes("there", cost=9)], None),
    ("no word of here", "soonest", [yes("there", starts_s=1)], None),
    ("no word of there", "soonest", [HERE], None),
    ("no ETA", "soonest", [HERE, yes("there")], None),
    ("here says no", "soonest", [NO, yes("there")], "here says no by now (drained at noon), there says yes"),
    ("both say no", "soonest", [NO, Quote(cluster="there", said=QuoteOutcome.NO)], None),
    ("another algorithm", "clever", [HERE, yes("there", starts_s=1, cost=1)], None),
]


@pytest.mark.parametrize(("algorithm", "quotes", "reason"), [row[1:] for row in QUOTED], ids=[row[0] for row in QUOTED])
def test_a_clearly_better_quote(algorithm: str, quotes: list[Quote], reason: str | None) -> None:
    eligibility = an_eligibility("there", algorithm=algorithm, quoted=tuple(quotes))
    found = find_better_quote(eligibility, "here", TERMS, seed="j")
    assert (found and found.reason) == reason


def test_whoever_is_among_the_best_stays() -> None:
    quoted = (HERE, yes("there", starts_s=1))
    assert (
        find_better_quote(an_eligibility("here", "there", algorithm="soonest", quoted=quoted), "here", TERMS, seed="j")
        is None
    )
