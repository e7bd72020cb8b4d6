"""A bounded pool serves in order and refuses what comes beyond its bounds."""

from __future__ import annotations

import asyncio
import threading

import pytest

from switchyard.errors import Busy
from switchyard.server.grpc.limiter import current_caller
from switchyard.server.loops.workers import BoundedPool


def run_two(pool: BoundedPool, *sizes: int) -> list[object]:
    """Calls that all wait for one gate; what became of each."""
    gate = threading.Event()

    async def main() -> list[object]:
        calls = [asyncio.ensure_future(pool.run(gate.wait, 10, size=size)) for size in sizes]
        await asyncio.sleep(0)  # each has been taken or refused
        gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(main())


def test_more_calls_than_may_wait_are_refused() -> None:
    pool = BoundedPool("test", 1, calls_max=2, bytes_max=100)
    first, second, third = run_two(pool, 1, 1, 1)
    assert (first, second) == (True, True)
    assert isinstance(third, Busy)
    assert third.status == 429
    assert pool.is_idle


def test_more_bytes_than_may_wait_are_refused() -> None:
    pool = BoundedPool("test", 1, calls_max=10, bytes_max=100)
    first, second, third = run_two(pool, 60, 60, 40)
    assert (first, third) == (True, True)
    assert isinstance(second, Busy)


def test_a_call_that_fails_gives_its_place_back() -> None:
    pool = BoundedPool("test", 1, calls_max=1, bytes_max=1)

    def fail() -> None:
        raise ValueError

    for _ in range(3):
        with pytest.raises(ValueError):
            asyncio.run(pool.run(fail, size=1))
    assert pool.is_idle


def test_one_user_has_at_most_half_of_what_may_wait_and_users_take_turns() -> None:
    pool, gate = BoundedPool("test", 1, calls_max=6, bytes_max=100), threading.Event()
    order: list[str] = []

    async def call(user: str) -> None:
        current_caller.set(user)
        await pool.run(lambda: (gate.wait(10), order.append(user)), size=1)

    async def main() -> list[object]:
        calls = [asyncio.ensure_future(call(user)) for user in ("col", "col", "col", "col", "ann")]
        await asyncio.sleep(0)  # each has been taken or refused
        gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(main())
    assert [type(result) for result in results] == [type(None)] * 3 + [Busy, type(None)]
    assert order == ["col", "col", "ann", "col"]
    assert pool.is_idle
