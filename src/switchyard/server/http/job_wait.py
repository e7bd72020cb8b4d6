"""A request that waits for a job: parked on the loop, and woken when something happens to the job.

Waiting requests of one user that ask for the same share each read of the database. A wake-up may get lost, so each
request also reads now and then without one: the more requests a user has open, the more rarely each of them reads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from switchyard.model.wire.ids import LENGTH, is_id
from switchyard.server.http.call import Call
from switchyard.server.http.connections.asgi_messages import AsgiReceive, wait_for_disconnect
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.wakeup_hub import wait_for_first

UNANNOUNCED_REREAD_S = 1.0  # how late a request hears of a change at another server that is not announced
REREADS_PER_SECOND = 50  # that all waiting requests of one user make without having been woken
ReadAnswer = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class JobWait:
    """How an endpoint waits."""

    parameter: str  # the query parameter with the seconds to wait
    default_s: float
    is_complete: Callable[[Any], bool]  # of an answer: there is nothing to wait for
    job_id: Callable[[Any], str]  # of an answer
    is_announced: bool  # servers announce the awaited change to each other


async def wait_for_job(
    server: ServerRuntime, call: Call, receive: AsgiReceive, read: ReadAnswer, wait: JobWait, *, path: str
) -> Any:
    """Return the answer once it is complete, or when the time is over."""
    wait_s = call.seconds(wait.parameter, wait.default_s, most=server.settings.bounds.wait_s)
    if not wait_s:
        return await read()
    with server.limiter.hold_open(call.actor, "waits"):
        gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            return await _parked(server, call, read, gone, wait=wait, wait_s=wait_s, path=path)
        finally:
            gone.cancel()


async def _parked(
    server: ServerRuntime,
    call: Call,
    read: ReadAnswer,
    gone: asyncio.Task[object],
    *,
    wait: JobWait,
    wait_s: float,
    path: str,
) -> Any:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    key = _read_key(server, call, wait, path)
    job_id = call.path["job"]
    if not (len(job_id) == LENGTH and is_id(job_id)):  # a prefix: the answer has the id
        answer = await server.wakeups.reads.read(key, read)
        job_id = wait.job_id(answer)
        if wait.is_complete(answer):
            return answer
    while True:
        with server.wakeups.hub.job_waiter(job_id) as waiter:
            # Register first, then read: a change in between would wake nobody.
            answer = await server.wakeups.reads.read(key, read)
            left_s = deadline - loop.time()
            if wait.is_complete(answer) or left_s <= 0 or gone.done() or server.wakeups.hub.is_closing:
                return answer
            await wait_for_first(waiter, gone, min(left_s, _reread_s(server, call, wait)))


def _reread_s(server: ServerRuntime, call: Call, wait: JobWait) -> float:
    """Seconds until the next read without a wake-up."""
    # SQLite has one server, which sees every change.
    is_announced = wait.is_announced or server.context.database.is_sqlite
    shortest_s = server.settings.intervals.sweep_s if is_announced else UNANNOUNCED_REREAD_S
    user_s = server.limiter.open["waits"].of(call.actor.name) / REREADS_PER_SECOND
    return max(shortest_s, user_s) * random.uniform(0.75, 1.25)  # noqa: S311  spread, not secret


def _read_key(server: ServerRuntime, call: Call, wait: JobWait, path: str) -> object:
    """Requests with the same key share a read. The access version is in it: other grants may show less."""
    query = tuple((name, value) for name, value in call.query if name != wait.parameter)
    return (call.actor.id, server.context.snapshots.access.version, path, call.path["job"], query)
