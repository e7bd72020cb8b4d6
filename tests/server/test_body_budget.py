"""The budget of large bodies that are being read, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from switchyard.errors import Busy, Throttled
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN
from switchyard.server.grpc.limiter import ANONYMOUS, current_caller
from switchyard.server.http.bodies import body_budget
from switchyard.server.http.bodies.body_budget import (
    ADDRESS_BYTES_MAX,
    BODIES,
    CALLER_BYTES_MAX,
    CALLER_WAITING_MAX,
    BodyBudget,
    BodyBudgets,
)
from switchyard.server.http.bodies.body_decoding import read_body
from switchyard.server.http.endpoint import BodyForm, Caller
from switchyard.server.http.endpoints import ENDPOINTS

FOREVER_S = 1000.0


class Bodies:
    """A budget of 4 bytes, 2 for one caller. Each `come` is a body that is held until `go`."""

    def __init__(self, wait_s: float = FOREVER_S) -> None:
        self.refusals: list[str] = []
        self.budget = BodyBudget(4, 2, self.refusals.append, wait_s)
        self.read: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, size: int) -> None:
        """`name`: the caller and a number."""
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._hold(name, size))
        await settle()

    async def _hold(self, name: str, size: int) -> None:
        async with self.budget.hold(name[0], size):
            self.read.append(name)
            await self._ends[name].wait()

    async def go(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settle()

    async def stop(self, name: str) -> None:
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        await settle()

    async def error(self, name: str) -> Exception | None:
        await asyncio.wait({self._tasks[name]})
        error = self._tasks[name].exception()
        assert error is None or isinstance(error, Exception)
        return error


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test())  # type: ignore[arg-type]


@on_loop
async def test_a_caller_over_its_share_waits_and_others_pass() -> None:
    bodies = Bodies()
    for name in ("a1", "a2", "a3"):
        await bodies.come(name, 2 if name == "a2" else 1)
    await bodies.come("b1", 2)
    assert bodies.read == ["a1", "b1"], "a3 would fit, but must not overtake a2"
    await bodies.go("a1")
    assert bodies.read == ["a1", "b1", "a2"]
    for name in ("b1", "a2", "a3"):
        await bodies.go(name)
    assert (bodies.read[-1], bodies.budget.bytes_held, bodies.budget.by_holder) == ("a3", 0, {})
    assert bodies.refusals == []


@on_loop
async def test_smaller_bodies_do_not_overtake_when_the_server_is_full() -> None:
    bodies = Bodies()
    for name, size in (("a1", 2), ("b1", 1), ("c1", 2), ("d1", 1)):
        await bodies.come(name, size)
    assert bodies.read == ["a1", "b1"]
    await bodies.go("b1")
    assert bodies.read == ["a1", "b1", "c1"]
    await bodies.go("a1")
    assert bodies.read == ["a1", "b1", "c1", "d1"]
    await bodies.go("c1")
    await bodies.go("d1")


@on_loop
async def test_too_many_waiting_bodies_of_one_caller_are_refused() -> None:
    bodies = Bodies()
    await bodies.come("a1", 2)
    waiting = [f"a{number}" for number in range(2, 2 + CALLER_WAITING_MAX)]
    for name in waiting:
        await bodies.come(name, 1)
    await bodies.come("ax", 1)
    error = await bodies.error("ax")
    assert isinstance(error, Throttled)
    assert (error.limit, bodies.refusals) == (BODIES, [BODIES])
    await bodies.come("b1", 2)
    assert bodies.read == ["a1", "b1"]
    for name in waiting:
        await bodies.stop(name)
    await bodies.go("a1")
    await bodies.go("b1")
    assert (bodies.budget.bytes_held, len(bodies.budget.waiting)) == (0, 0)


@on_loop
async def test_a_body_does_not_wait_for_ever() -> None:
    bodies = Bodies(wait_s=0)
    for name in ("a1", "b1"):
        await bodies.come(name, 2)
    await bodies.come("a2", 1)
    await bodies.come("c1", 1)
    own, of_all = await bodies.error("a2"), await bodies.error("c1")
    assert (type(own), type(of_all)) == (Throttled, Busy)
    assert isinstance(of_all, Busy)
    assert of_all.limit == BODIES
    assert len(bodies.budget.waiting) == 0
    await bodies.go("a1")
    await bodies.go("b1")


@on_loop
async def test_a_body_that_is_admitted_while_its_request_is_cancelled_is_given_back() -> None:
    bodies = Bodies()
    await bodies.come("a1", 2)
    await bodies.come("a2", 2)
    bodies._tasks["a2"].cancel()
    bodies._ends["a1"].set()
    await asyncio.wait(set(bodies._tasks.values()))
    assert (bodies.budget.bytes_held, len(bodies.budget.waiting)) == (0, 0)


def test_every_body_fits_into_the_share_of_its_caller() -> None:
    for endpoint in ENDPOINTS:
        is_known = endpoint.caller in (Caller.USER, Caller.AGENT, Caller.USER_OR_AGENT)
        if endpoint.body_form is not BodyForm.UPLOAD:
            assert endpoint.body_bound.bytes_max <= (CALLER_BYTES_MAX if is_known else ADDRESS_BYTES_MAX)


class Sender:
    """A client that sends its body in parts; the last one ends it."""

    def __init__(self, *parts: int, declared: int | None = None) -> None:
        self.scope = {
            "headers": [] if declared is None else [(b"content-length", b"%d" % declared)],
            "client": ("a", 1),
        }
        self._parts = list(parts)

    async def receive(self) -> dict[str, Any]:
        size = self._parts.pop(0)
        return {"type": "http.request", "body": b"x" * size, "more_body": bool(self._parts)}

    @property
    def is_read(self) -> bool:
        return not self._parts


@pytest.mark.parametrize("caller", ["ann", "agent:1", ANONYMOUS])
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_large_body_waits_and_a_small_one_does_not(
    monkeypatch: pytest.MonkeyPatch, caller: str, *, is_declared: bool
) -> None:
    large, small = 3 * LARGE_BYTES_MIN, LARGE_BYTES_MIN
    for name in ("CALLER_BYTES_MAX", "ADDRESS_BYTES_MAX"):
        monkeypatch.setattr(body_budget, name, large)

    async def run() -> None:
        current_caller.set(caller)
        budgets = BodyBudgets(lambda _: None)
        waiting = Sender(small, small, small, declared=large if is_declared else None)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(budgets.hold(waiting.scope, large))
            reading = asyncio.ensure_future(read_body(budgets, waiting.scope, waiting.receive, large))
            await settle()
            assert not waiting.is_read
            other = Sender(small, declared=small)
            assert len(await read_body(budgets, other.scope, other.receive, large)) == small
        assert len(await reading) == large

    asyncio.run(run())
