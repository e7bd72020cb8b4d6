"""Users take turns at the threads, none has them all, and reads are shared."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from switchyard.errors import Busy, NotFound, Throttled, Unavailable, YardError
from switchyard.policy.limits import UserLimits, limit_refusal
from switchyard.server.grpc.limiter import SERVER, Limiter
from switchyard.server.loops.loop_calls import copy_result
from switchyard.server.loops.wakeups import SharedReads
from switchyard.server.loops.workers import FairThreads
from switchyard.service.core.rights import Actor, Rights, local_admin
from tests.processes import PATIENCE_S

LONG_S = 10.0
CALLS_REFUSAL = partial(limit_refusal, "calls")


def with_threads(
    work: Callable[[FairThreads], Awaitable[None]],
    *,
    size: int,
    share: int,
    depth: int = 0,
    refusal: Callable[[int, int], YardError] = CALLS_REFUSAL,
) -> None:
    threads = FairThreads("test", size=size, share=share, depth_of=lambda _: depth, refusal=refusal)

    async def run() -> None:
        await work(threads)

    asyncio.run(run())
    threads.close(wait=True)


def test_users_whose_calls_wait_take_turns() -> None:
    order: list[str] = []

    async def work(threads: FairThreads) -> None:
        crowd = [asyncio.ensure_future(threads.run("ann", partial(order.append, "ann"))) for _ in range(50)]
        await asyncio.sleep(0)
        await threads.run("bob", partial(order.append, "bob"))
        await asyncio.gather(*crowd)

    with_threads(work, size=1, share=1)
    assert order.index("bob") <= 2, "bob comes after what runs and one more, not after fifty"
    assert order.count("ann") == 50


def test_one_user_never_has_all_threads() -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    def long() -> None:
        begun.release()
        assert release.wait(LONG_S)

    async def work(threads: FairThreads) -> None:
        crowd = [asyncio.ensure_future(threads.run("ann", long)) for _ in range(9)]
        await asyncio.sleep(0)
        assert await threads.run("bob", lambda: "quick") == "quick", "while all of ann's are still at it"
        assert await threads.run(SERVER, lambda: "own") == "own"
        assert sum(begun.acquire(blocking=False) for _ in range(9)) <= 2
        release.set()
        await asyncio.gather(*crowd)

    with_threads(work, size=3, share=2)


def test_too_many_calls_of_one_user_are_refused_and_nobody_elses() -> None:
    release = threading.Event()

    async def work(threads: FairThreads) -> None:
        crowd = [asyncio.ensure_future(threads.run("ann", lambda: release.wait(LONG_S))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled, match="`calls`"):
            await threads.run("ann", lambda: None)
        assert await threads.run("bob", lambda: 1) == 1
        release.set()
        assert await asyncio.gather(*crowd) == [True] * 3
        assert await threads.run("ann", lambda: 2) == 2

    with_threads(work, size=2, share=1, depth=2)


def test_a_refusal_is_counted_and_says_where_its_limit_is_set() -> None:
    refused: list[str] = []
    limiter = Limiter(lambda _: UserLimits(), refused.append)

    async def refuse_one(threads: FairThreads) -> None:
        release = threading.Event()
        crowd = [asyncio.ensure_future(threads.run("ann", lambda: release.wait(LONG_S))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled) as caught:
            await threads.run("ann", lambda: None)
        problems.append(caught.value)
        release.set()
        await asyncio.gather(*crowd)

    problems: list[Throttled] = []
    for refusal in (limiter.calls_refusal, limiter.decisions_refusal):
        with_threads(refuse_one, size=1, share=1, depth=1, refusal=refusal)
    calls, decisions = problems
    assert "set by `limits.calls`" in calls.detail
    assert "set in the code" in decisions.detail
    assert "limits.calls" not in decisions.detail
    assert refused == [calls.limit, decisions.limit] == ["calls", "decisions"]


def test_requests_are_counted_from_many_threads() -> None:
    """Rainbow's calls count on the gRPC port's loop and on threads, HTTP on the server's loop."""
    threads, requests_each = 8, 100

    class YieldingLimits:
        """Another thread runs between the bucket's reading and its writing."""

        burst = threads * requests_each // 2

        @property
        def requests(self) -> int:
            time.sleep(0.0001)  # the row takes a moment to count
            return 1

    limits: Any = YieldingLimits()
    limiter = Limiter(lambda _: limits, lambda _: None, clock=lambda: 5.0)
    ann = Actor("ann", Rights())

    def ask(_: int) -> int:
        taken = 0
        for _ in range(requests_each):
            with suppress(Throttled):
                limiter.count_request(ann)
                taken += 1
        return taken

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(ask, range(threads))) == limits.burst


def test_errors_and_callers_that_give_up_free_their_threads() -> None:
    def fail() -> None:
        raise NotFound("gone")

    async def work(threads: FairThreads) -> None:
        for _ in range(5):
            with pytest.raises(NotFound):
                await threads.run("ann", fail)
        crowd = [asyncio.ensure_future(threads.run("ann", lambda: None)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in crowd[::2]:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert await threads.run("ann", lambda: 3) == 3
        assert not threads._queues

    with_threads(work, size=2, share=1)


def test_a_read_is_shared_by_all_who_ask_before_it_begins() -> None:
    async def run() -> list[Any]:
        reads, gates = SharedReads(), [asyncio.Event(), asyncio.Event()]
        began: list[Any] = []

        async def look() -> int:
            number = len(began)
            began.append(number)
            await gates[number].wait()
            return number

        first = [asyncio.ensure_future(reads.read("a", look)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert began == [0]
        later = [asyncio.ensure_future(reads.read("a", look)) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert began == [0], "what began before they asked may have missed what they ask for"
        for gate in gates:
            gate.set()
        answers = await asyncio.gather(*first, *later)
        assert (reads._running, reads._next) == ({}, {})
        return answers

    assert asyncio.run(run()) == [0] * 3 + [1] * 5


def test_a_failed_read_fails_for_all_and_the_next_begins_anew() -> None:
    async def run() -> None:
        reads = SharedReads()

        async def fail() -> None:
            raise NotFound("gone")

        async def look() -> str:
            return "there"

        failed = await asyncio.gather(*(reads.read("a", fail) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [NotFound] * 3
        assert await reads.read("a", look) == "there"

    asyncio.run(run())


def test_what_is_open_is_counted_by_user_and_let_go() -> None:
    refused: list[str] = []
    limiter = Limiter(lambda _: UserLimits(waits=1, requests=1, burst=1), refused.append, clock=lambda: 5.0)
    ann, bob = Actor("ann", Rights()), Actor("bob", Rights())
    with limiter.hold_open(ann, "waits"), limiter.hold_open(bob, "waits"):
        with pytest.raises(Throttled), limiter.hold_open(ann, "waits"):
            pass
        assert limiter.open["waits"].of("ann") == 1
        with limiter.hold_open(local_admin(), "waits"), limiter.hold_open(local_admin(), "waits"):
            pass
    with limiter.hold_open(ann, "waits"):
        pass
    assert limiter.open["waits"].of("ann") == 0
    limiter.count_request(ann)
    limiter.count_request(bob)
    with pytest.raises(Throttled):
        limiter.count_request(ann)
    for _ in range(9):
        limiter.count_request(local_admin())
    assert refused == ["waits", "requests"]


def test_one_user_leaves_slots_for_others() -> None:
    limiter = Limiter(lambda _: UserLimits(), lambda _: None, connections=8)
    ann, admin = Actor("ann", Rights()), local_admin()
    with limiter.hold_open(ann, "waits"), limiter.hold_open(ann, "waits"):
        with pytest.raises(Busy, match="for one user"), limiter.hold_open(ann, "waits"):
            pass
        with limiter.hold_open(admin, "waits"), limiter.hold_open(admin, "waits"):
            with pytest.raises(Busy, match="for one user"), limiter.hold_open(admin, "waits"):
                pass
            with pytest.raises(Busy, match="4 waits are open"), limiter.hold_open(Actor("bob", Rights()), "waits"):
                pass
    with limiter.hold_open(ann, "waits"):
        pass


def test_the_jobs_of_a_bulk_submit_count_as_requests() -> None:
    now_s = 5.0
    limiter = Limiter(lambda _: UserLimits(requests=10, burst=20), lambda _: None, clock=lambda: now_s)
    col = Actor("col", Rights())
    limiter.count_request(col)
    limiter.charge_jobs(col, 5000)  # as 50 requests: 31 too many
    with pytest.raises(Throttled) as refused:
        limiter.count_request(col)
    assert refused.value.retry_after_s == 3
    now_s += 3.3
    limiter.count_request(col)
    limiter.charge_jobs(local_admin(), 10**6)
    limiter.count_request(local_admin())


def test_a_call_that_ends_after_the_loop_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A server that stops does not wait for its threads."""
    may_end = threading.Event()
    threads = FairThreads("late", size=1, share=1, depth_of=lambda _: 9, refusal=lambda *_: Busy(""))

    async def begin() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(threads.run("ann", lambda: may_end.wait(PATIENCE_S)), 0)

    asyncio.run(begin())
    may_end.set()
    threads.close(wait=True)
    assert caplog.text == ""


def test_a_failure_that_nobody_waits_for_any_more_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The loop of a server ends between the failure of a call and the turn of whoever waited for it."""
    loop, failed = asyncio.new_event_loop(), Future[None]()
    failed.set_exception(Unavailable("The server is stopping."))
    copy_result(loop.create_future(), failed)
    gc.collect()
    loop.close()
    assert caplog.text == ""


def test_a_call_after_the_end_is_refused_and_no_defect() -> None:
    threads = FairThreads("over", size=1, share=1, depth_of=lambda _: 9, refusal=lambda *_: Busy(""))
    threads.close()
    with pytest.raises(Unavailable):
        asyncio.run(threads.run("ann", lambda: 1))
    threads.start(lambda: None)
