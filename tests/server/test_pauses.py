"""The meter of a loop's pauses: it sees work, a thread that keeps the interpreter to itself, and mere waiting."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable

from switchyard.server.loops.runtime import LoopPause, LoopPauseMeter
from switchyard.service.core.process_metrics import Histogram

PAUSE_S = 0.2
SEEN_S = 0.1  # half of it: the machine may be slow, and a tick is a tick


def work() -> None:
    """Keep the processor busy for a while, by its own time."""
    until = time.thread_time() + PAUSE_S
    while time.thread_time() < until:
        pass


def hold() -> None:
    """One call that does not let go of the interpreter: a search that goes back again and again."""
    pattern, text = re.compile("(a|aa)+b"), "a" * 24
    until = time.thread_time() + PAUSE_S
    while time.thread_time() < until:
        text += "a"
        pattern.match(text)


def paused(block: Callable[[], object]) -> tuple[LoopPause, LoopPause]:
    """The longest pause while the loop's own thread is blocked, and the longest after that."""

    async def main() -> tuple[LoopPause, LoopPause]:
        histogram = Histogram((SEEN_S,), "loop")
        meter = LoopPauseMeter("http", histogram)
        meter.start(asyncio.get_running_loop())
        await asyncio.sleep(0.03)
        meter.take()
        block()
        await asyncio.sleep(0.03)
        longest = meter.take()
        assert histogram.read()[("http",)].counts[1] >= 1
        return longest, meter.take()

    return asyncio.run(main())


def test_work_on_the_loop_is_a_pause() -> None:
    longest, after = paused(work)
    assert longest.cpu_s >= SEEN_S
    assert longest.wall_s >= longest.cpu_s
    assert after.cpu_s < SEEN_S, "each reading begins anew"


def test_a_loop_that_only_waits_uses_no_cpu() -> None:
    longest, _ = paused(lambda: time.sleep(PAUSE_S))
    assert longest.wall_s >= SEEN_S
    assert longest.cpu_s < SEEN_S


def test_a_thread_that_keeps_the_interpreter_to_itself_is_a_pause() -> None:
    def other() -> None:
        thread = threading.Thread(target=hold)
        thread.start()
        thread.join()

    longest, _ = paused(other)
    assert longest.cpu_s >= SEEN_S
