"""The budget of large gRPC messages, and the memory of wrong secrets, without a server."""

from __future__ import annotations

import asyncio

import pytest

from switchyard.errors import Busy
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN
from switchyard.server.grpc.grpc_intake import (
    WRONG_SECRET_BYTES_MAX,
    WRONG_SECRET_WINDOW_S,
    WRONG_SECRETS_MAX,
    MessageBudget,
    WrongSecrets,
    _ReadSlots,
)

LARGE = LARGE_BYTES_MIN


def test_bytes_are_bounded_by_address_and_in_all() -> None:
    budget = MessageBudget(bytes_max=3 * LARGE, holder_bytes_max=2 * LARGE)
    with budget.hold("a", LARGE), budget.hold("a", LARGE):
        with pytest.raises(Busy), budget.hold("a", LARGE):
            pass
        with budget.hold("b", LARGE), pytest.raises(Busy), budget.hold("c", LARGE):
            pass
        with budget.hold("a", LARGE - 1):
            assert budget.bytes_held == 2 * LARGE, "small messages are not counted"
    assert (budget.bytes_held, budget.by_holder) == (0, {})


def test_a_message_with_a_graph_waits_for_room_before_it_is_read() -> None:
    async def run() -> None:
        budget = MessageBudget(bytes_max=4 * LARGE, holder_bytes_max=2 * LARGE)
        slots = _ReadSlots(2, 1, 10.0, 10.0, budget, reserve_bytes=LARGE)
        with budget.hold("a", LARGE):
            with budget.hold("a", LARGE):
                assert not slots.has_place("a")
                assert slots.has_place("b")
                waiting = asyncio.ensure_future(slots.place("a"))
                await asyncio.sleep(0)
                assert not waiting.done()
            slots.free()
            await asyncio.wait_for(waiting, 5.0)

    asyncio.run(run())


def test_wrong_secrets_are_counted_by_number_and_by_bytes_within_a_window() -> None:
    now = 1000.0
    wrong = WrongSecrets("registrations", "Wait.", lambda: now)
    for _ in range(WRONG_SECRETS_MAX):
        wrong.check("a")
        wrong.note("a", 1)
    wrong.note("b", WRONG_SECRET_BYTES_MAX)
    for address in ("a", "b"):
        with pytest.raises(Busy, match="registrations of this address"):
            wrong.check(address)
    wrong.check("c")
    now += WRONG_SECRET_WINDOW_S + 1
    wrong.check("a")
    wrong.check("b")
