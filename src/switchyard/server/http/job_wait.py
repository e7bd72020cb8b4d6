"""A request that waits for a job: parked on the loop, woken by whoever brings what it waits for.

Followers of the same thing by the same user share each read of the database. A wake-up may get lost, so each follower
also looks by itself now and then: the more followers a user has, the more rarely each of them looks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from switchyard.model.api import Output
from switchyard.model.ids import LENGTH, is_id
from switchyard.model.job import Job
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.server.http.asgi_messages import AsgiReceive
from switchyard.server.http.call import Call
from switchyard.server.http.hot_routes import wait_for_disconnect
from switchyard.server.runtime import ServerRuntime
from switchyard.server.wakeup_hub import wait_for_first

LOG_REREAD_S = 1.0  # how late a follower hears of what came in at another server, which tells nobody of logs
REREADS_PER_SECOND = 50  # that all followers of one user make without having been woken
WAIT_PARAMETERS = ("wait_s", "timeout_s")  # how long to wait is no part of what is asked
WaitAnswer = Job | Output
ReadAnswer = Callable[[], Awaitable[WaitAnswer]]


async def wait_for_job(
    yard: ServerRuntime, call: Call, receive: AsgiReceive, look: ReadAnswer, *, path: str, is_log: bool
) -> WaitAnswer:
    """Answer when there is what was asked for, or when the time is over."""
    wait_s = call.seconds(*(("wait_s", 0) if is_log else ("timeout_s", 30)), most=yard.settings.bounds.wait_s)
    if not wait_s:
        return await look()
    with yard.limiter.holding(call.actor, "waits"):
        gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            return await _parked(yard, call, look, wait_s, gone, key=_key(yard, call, path), is_log=is_log)
        finally:
            gone.cancel()


async def _parked(
    yard: ServerRuntime,
    call: Call,
    look: ReadAnswer,
    wait_s: float,
    gone: asyncio.Task[object],
    *,
    key: object,
    is_log: bool,
) -> WaitAnswer:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    asked = call.path["job"]
    if not (len(asked) == LENGTH and is_id(asked)):  # an abbreviation: whose id it is, the answer says
        found: WaitAnswer = await yard.reads.read(key, look)
        asked = found.job if isinstance(found, Output) else found.id
        if _is_complete(found):
            return found
    while True:
        with yard.hub.watching(asked) as waiter:
            # Registered first, then looked: an end that came in between would wake nobody.
            found = await yard.reads.read(key, look)
            left_s = deadline - loop.time()
            if _is_complete(found) or left_s <= 0 or gone.done() or yard.hub.is_closing:
                return found
            await wait_for_first(waiter, gone, min(left_s, _reread_s(yard, call, is_log=is_log)))


def _reread_s(yard: ServerRuntime, call: Call, *, is_log: bool) -> float:
    """When to look without having been woken."""
    # SQLite has one server, which tells its followers of each piece of output.
    is_told = not is_log or yard.context.database.is_sqlite
    shortest_s = yard.settings.pace.sweep_s if is_told else LOG_REREAD_S
    mine_s = yard.limiter.open_of(call.actor, "waits") / REREADS_PER_SECOND
    return max(shortest_s, mine_s) * random.uniform(0.75, 1.25)  # noqa: S311  spread, not secret


def _key(yard: ServerRuntime, call: Call, path: str) -> object:
    """What is asked for, and by whom: another's rights, or one's own after a change of the grants, may show less."""
    query = tuple((name, value) for name, value in call.query if name not in WAIT_PARAMETERS)
    return (call.actor.id, yard.context.snapshots.access.version, path, call.path["job"], query)


def _is_complete(found: WaitAnswer) -> bool:
    if isinstance(found, Output):
        return bool(found.chunks) or found.is_over
    return found.state in FINAL_STATES
