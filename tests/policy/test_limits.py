"""The limits of a user: what is over, what is said, and how a bucket of requests fills again."""

from __future__ import annotations

import dataclasses

import pytest

from switchyard.errors import LimitReached, Throttled
from switchyard.policy.limits import LIMITS, RequestBucket, UserLimits, exceeds_limit, limit_refusal

SLOW = UserLimits(requests=2, burst=3)


def test_every_limit_of_a_user_is_in_the_table() -> None:
    assert list(LIMITS) == [field.name for field in dataclasses.fields(UserLimits)]
    assert {name: limit.default for name, limit in LIMITS.items()} == dataclasses.asdict(UserLimits())


@pytest.mark.parametrize("name", list(LIMITS))
def test_a_refusal_names_the_limit_its_value_the_use_and_where_it_is_set(name: str) -> None:
    error = limit_refusal(name, 7, 5, 3)
    assert isinstance(error, Throttled if LIMITS[name].retry_s else LimitReached)
    assert error.limit == name
    assert error.retry_after_s == LIMITS[name].retry_s, "only where time cures it"
    for part in (f"`{name}`", "7", "5", "3 more" if name != "bytes" else "3B more", f"`limits.{name}`"):
        assert part in error.detail
    assert error.next_step == LIMITS[name].advice


@pytest.mark.parametrize(
    ("most", "used", "asked", "over"), [(5, 4, 1, False), (5, 5, 1, True), (5, 0, 6, True), (0, 10**9, 10**9, False)]
)
def test_more_than_the_limit_is_over_and_zero_is_none(most: int, used: int, asked: int, over: bool) -> None:
    assert exceeds_limit(most, used, asked) is over


def test_a_bucket_gives_its_burst_then_fills_with_time() -> None:
    bucket = RequestBucket(SLOW.burst, 100.0)
    assert [bucket.take(SLOW, 100.0) is None for _ in range(4)] == [True, True, True, False]
    assert bucket.take(SLOW, 100.4) is not None, "0.8 of a request has come"
    assert bucket.take(SLOW, 100.5) is None
    assert [bucket.take(SLOW, 999.0) is None for _ in range(4)] == [True, True, True, False], "no more than the burst"


def test_a_bucket_says_how_often_one_may_ask() -> None:
    bucket = RequestBucket(0.0, 0.0)
    error = bucket.take(SLOW, 0.0)
    assert error is not None
    assert error.limit == "requests"
    assert error.retry_after_s == 1
    assert "2 a second" in error.detail


def test_many_at_once_begin_one_by_one_and_a_few_at_once() -> None:
    limits, bucket = UserLimits(requests=500, burst=2000), RequestBucket(2000, 7.0)
    delays = [bucket.delay_s(limits, 7.0) for _ in range(150)]
    assert delays[:50] == pytest.approx([0.0] * 50)
    assert delays[149] == pytest.approx(0.1), "a hundred more, a thousand a second"
    assert [bucket.delay_s(limits, 7.0 + 0.1 + 0.05) for _ in range(50)] == pytest.approx([0.0] * 50)
