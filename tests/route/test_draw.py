"""The draw: shares by weight, stable under change, the same in every process and for any number of clusters."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.route.select import weighted_draw
from switchyard.route.select.weighted_draw import LOOP_MAX, MASK, WeightedCandidates, draw, highest_score
from tests.route.job_ids import COUNT, job_ids


def groups_of(names, weights):
    by_weight: dict[float, list[tuple[int, int]]] = {}
    for number, (name, weight) in enumerate(zip(names, weights, strict=True)):
        if weight > 0:
            by_weight.setdefault(float(weight), []).append((weighted_draw.hash_name(name), number))
    return [
        (weight, np.array([key for key, _ in members], dtype=np.uint64), np.array([number for _, number in members]))
        for weight, members in by_weight.items()
    ]


def by_arrays(seed, names, weights):
    return highest_score(weighted_draw.hash_text(seed), groups_of(names, weights))


@pytest.mark.parametrize("count", [LOOP_MAX - 1, 30])
def test_the_next_best_is_who_would_win_without_the_winner(count: int) -> None:
    names = [f"cluster-{index}" for index in range(count)]
    weights = [index % 3 for index in range(count)]
    candidates = WeightedCandidates.of(names, weights)
    for seed in job_ids()[:200]:
        first, second = candidates.ranked(seed, 2)
        without = [0 if index == first else weight for index, weight in enumerate(weights)]
        assert (first, second) == (draw(seed, names, weights), draw(seed, names, without))
    assert len(candidates.ranked(job_ids()[0], count)) == sum(weight > 0 for weight in weights)


@pytest.mark.parametrize("weights", [(1, 2, 6), (0.5, 0, 1.5), (99, 1)])
def test_shares_follow_the_weights_within_a_percentage_point(weights) -> None:
    names = [f"cluster-{index}" for index in range(len(weights))]
    won = Counter(draw(seed, names, weights) for seed in job_ids())
    for index, weight in enumerate(weights):
        assert abs(won[index] / COUNT - weight / sum(weights)) < 0.01


def test_shares_follow_the_weights_among_many_clusters() -> None:
    names = [f"cluster-{index}" for index in range(LOOP_MAX + 5)]
    weights = [1.0 + index % 3 for index in range(len(names))]
    won = Counter(draw(seed, names, weights) for seed in job_ids()[:12_000])
    for index, weight in enumerate(weights):
        assert abs(won[index] / 12_000 - weight / sum(weights)) < 0.01


def test_zero_is_drawn_only_when_all_are_zero() -> None:
    names = ["a", "b", "c"]
    assert {draw(seed, names, (0, 1, 0)) for seed in job_ids()[:1000]} == {1}
    assert {draw(seed, names, (0, 0, 0)) for seed in job_ids()[:1000]} == {0, 1, 2}
    many = [f"c{index}" for index in range(30)]
    assert {draw(seed, many, [0.0] * 29 + [1.0]) for seed in job_ids()[:100]} == {29}
    assert len({draw(seed, many, [0.0] * 30) for seed in job_ids()[:1000]}) == 30


@pytest.mark.parametrize("count", [10, LOOP_MAX + 1])
def test_removing_a_cluster_moves_only_its_own_jobs(count: int) -> None:
    names = [f"cluster-{index}" for index in range(count)]
    weights = [1.0 + index % 2 for index in range(count)]
    gone = 3
    left, left_weights = names[:gone] + names[gone + 1 :], weights[:gone] + weights[gone + 1 :]
    moved = 0
    for seed in job_ids()[:5_000]:
        before = names[draw(seed, names, weights)]
        after = left[draw(seed, left, left_weights)]
        if before == names[gone]:
            moved += 1
        else:
            assert after == before
    assert abs(moved / 5_000 - weights[gone] / sum(weights)) < 0.02


def test_raising_a_weight_moves_jobs_only_there() -> None:
    names = [f"cluster-{index}" for index in range(8)]
    for seed in job_ids()[:5_000]:
        before = draw(seed, names, [1] * 8)
        after = draw(seed, names, [1] * 7 + [3])
        assert after in (before, 7)


NAMES = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=LOOP_MAX + 20, unique=True)


@given(st.text(max_size=10), NAMES, st.data())
def test_the_loop_and_the_arrays_give_the_same_winner(seed: str, names: list[str], data: st.DataObject) -> None:
    weight = st.sampled_from([0, 0.5, 1, 1.0, 2, 6, 99, 1e-9, 1e9]) | st.floats(0, 1e6)
    weights = data.draw(st.lists(weight, min_size=len(names), max_size=len(names)))
    if not any(weights):
        weights[0] = 1.0
    by_loop = weighted_draw._draw_by_loop(weighted_draw.hash_text(seed), names, weights)
    assert by_loop == by_arrays(seed, names, weights) == draw(seed, names, weights)
    assert weights[by_loop] > 0


@pytest.mark.parametrize("count", [LOOP_MAX - 1, LOOP_MAX, LOOP_MAX + 1])
def test_nothing_changes_where_the_loop_gives_way_to_the_arrays(count: int) -> None:
    names = [f"cluster-{index}" for index in range(count)]
    weights = [1.0 + index % 4 for index in range(count)]
    for seed in job_ids()[:500]:
        by_loop = weighted_draw._draw_by_loop(weighted_draw.hash_text(seed), names, weights)
        assert by_loop == by_arrays(seed, names, weights)


def test_draws_cache_nothing_for_each_job() -> None:
    """Otherwise the memory of a server grows with each job it has seen."""
    caches = [value for value in vars(weighted_draw).values() if hasattr(value, "cache_info")]
    for cache in caches:
        cache.cache_clear()
    for seed in job_ids()[:100]:
        draw(seed, ["a", "b"], [1, 2])
    assert sum(cache.cache_info().currsize for cache in caches) == 2, "one hash for each cluster"


@pytest.mark.parametrize("pair", [(MASK, MASK - 1), (MASK - 1, MASK - 2), (MASK - 5, MASK - 3), (2**60, 2**60 + 1)])
def test_hashes_too_near_for_a_float_still_have_one_winner(pair: tuple[int, int], monkeypatch) -> None:
    """The highest hashes are 1.0 as a fraction, whose logarithm is zero; neighbours are the same fraction."""
    names = ["a", "b"]
    keys = dict(zip(names, map(_unmix, pair), strict=True))
    monkeypatch.setattr(weighted_draw, "hash_name", keys.__getitem__)
    want = pair.index(max(pair))
    assert weighted_draw._draw_by_loop(0, names, [1, 1]) == highest_score(0, groups_of(names, [1, 1])) == want


def _unmix(value: int) -> int:
    """splitmix64's finaliser, backwards."""
    value = _unshift(value, 31) * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    value = _unshift(value, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    value = _unshift(value, 30)
    assert weighted_draw._mix(value) >= 0
    return value


def _unshift(value: int, by: int) -> int:
    found = value
    for _ in range(64 // by + 1):
        found = value ^ (found >> by)
    return found


def test_the_mixing_of_the_tests_is_undone_exactly() -> None:
    assert all(weighted_draw._mix(_unmix(value)) == value for value in (0, 1, MASK, 2**63, 12345678901234567890))


def test_two_processes_draw_the_same() -> None:
    code = (
        "from switchyard.route.select.weighted_draw import draw\n"
        f"for count in (5, {LOOP_MAX + 3}):\n"
        "    names, weights = [f'cluster-{n}' for n in range(count)], [1 + n % 3 for n in range(count)]\n"
        "    print([draw(f'job-{n}', names, weights) for n in range(200)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    here = ""
    for count in (5, LOOP_MAX + 3):
        names, weights = [f"cluster-{index}" for index in range(count)], [1 + index % 3 for index in range(count)]
        here += f"{[draw(f'job-{n}', names, weights) for n in range(200)]}\n"
    assert said == {here}
