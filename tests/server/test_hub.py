"""Who waits for what: no wake-up falls between the look and the wait."""

from __future__ import annotations

import asyncio

from switchyard.server.loops.wakeup_hub import WakeupHub, wait_for_first


def run(work) -> None:
    asyncio.run(asyncio.wait_for(work(), 10))


def test_what_happens_after_the_look_wakes_a_watcher() -> None:
    async def work() -> None:
        hub, gone = WakeupHub(), asyncio.ensure_future(asyncio.sleep(60))
        with hub.job_waiter("job") as waiter:
            hub.wake([], ["other"])
            assert not waiter.done()
            hub.wake([], ["job"])
            assert waiter.done()
            await wait_for_first(waiter, gone, 60)
        hub.wake([], ["job"])  # nobody is left to wake
        assert hub._jobs == {}
        gone.cancel()

    run(work)


def test_a_commit_that_nobody_waits_for_needs_no_turn_of_the_loop() -> None:
    async def work() -> None:
        hub = WakeupHub()
        assert not hub.is_any_waiting(["job"])
        with hub.job_waiter("job"):
            assert hub.is_any_waiting(["other", "job"])
            assert not hub.is_any_waiting(["other"])
        with hub.event_waiter(None):  # follows all jobs
            assert hub.is_any_waiting(["other"])
            assert not hub.is_any_waiting([])
        assert not hub.is_any_waiting(["job", "other"])

    run(work)


def test_a_poll_whose_cluster_was_woken_since_its_look_does_not_park() -> None:
    async def work() -> None:
        hub, gone = WakeupHub(), asyncio.ensure_future(asyncio.sleep(60))
        seen = hub.version("c")
        hub.wake(["c"], [])
        await hub.wait_cluster("c", seen, 60, gone)
        gone.cancel()
        assert not hub.is_waited_for("c")

    run(work)


def test_all_who_wait_go_home_when_it_closes_and_none_parks_afterwards() -> None:
    async def work() -> None:
        hub, gone = WakeupHub(), asyncio.ensure_future(asyncio.sleep(60))
        parked = [asyncio.ensure_future(hub.wait_cluster("c", hub.version("c"), 60, gone)) for _ in range(3)]
        await asyncio.sleep(0)
        assert hub.is_waited_for("c")
        hub.close()
        await asyncio.gather(*parked)
        await hub.wait_cluster("c", hub.version("c"), 60, gone)
        gone.cancel()

    run(work)


def test_a_waiter_goes_home_with_its_client_and_at_its_time() -> None:
    async def work() -> None:
        hub = WakeupHub()
        gone = asyncio.ensure_future(asyncio.sleep(0.05))
        await hub.wait_cluster("c", hub.version("c"), 60, gone)
        late = asyncio.ensure_future(asyncio.sleep(60))
        await hub.wait_cluster("c", hub.version("c"), 0.05, late)
        late.cancel()
        assert not hub.is_waited_for("c")

    run(work)
