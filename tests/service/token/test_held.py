"""The order in which waiting jobs get tokens, and that one who is refused is not overtaken. No pools but in memory."""

from __future__ import annotations

from switchyard.service.reserve.token_queue import TokenWaiter, fair_order


def waiter(id_: str, lane: str = "default/a", *, priority: int = 0) -> TokenWaiter:
    return TokenWaiter(id_, "a", "d", lane, priority, 0, "", {"pool": 1})


def order(*waiters: TokenWaiter, **served: int) -> list[str]:
    return [each.id for each in fair_order(waiters, {f"default/{lane}": at for lane, at in served.items()})]


def test_the_oldest_of_a_lane_comes_first() -> None:
    assert order(waiter("3"), waiter("1"), waiter("2")) == ["1", "2", "3"]


def test_the_highest_priority_comes_before_all() -> None:
    assert order(waiter("1"), waiter("2", priority=-5), waiter("3", "default/b", priority=5)) == ["3", "1", "2"]


def test_lanes_take_turns() -> None:
    many = [waiter(f"{number}") for number in range(1, 5)]
    assert order(*many, waiter("8", "default/b"), waiter("9", "default/b")) == ["1", "8", "2", "9", "3", "4"]


def test_a_lane_that_was_served_longer_ago_comes_first() -> None:
    assert order(waiter("1"), waiter("2"), waiter("8", "default/b"), a=7, b=3) == ["8", "1", "2"]
