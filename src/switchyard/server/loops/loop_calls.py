"""Calls from threads to an event loop that may be closed already, because the server has stopped meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def call_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function on its loop. Nothing happens if the loop is closed: nobody waits for it any more."""
    with contextlib.suppress(RuntimeError):  # raised if the loop is closed, which may happen at any moment
        loop.call_soon_threadsafe(function, *arguments)


def run_on_thread(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, function: Callable[[], T]
) -> asyncio.Future[T]:
    """As `loop.run_in_executor`, which logs a traceback if the function ends after the loop was closed.

    Raises RuntimeError if the pool is shut down.
    """
    future: asyncio.Future[T] = loop.create_future()
    pool.submit(function).add_done_callback(partial(call_on_loop, loop, copy_result, future))
    return future


def copy_result(to: asyncio.Future[Any], done: Future[Any] | asyncio.Future[Any]) -> None:
    """Give the result of a call to the future that somebody waits for."""
    if to.done():
        return
    if done.cancelled():
        to.cancel()
    elif (error := done.exception()) is not None:
        to.set_exception(error)
        to.exception()  # whoever waited may have given up: the loop must not log it as forgotten
    else:
        to.set_result(done.result())
