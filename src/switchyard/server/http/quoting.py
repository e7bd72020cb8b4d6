"""POST /v1/quotes: ask, then wait on the loop until all have answered or the deadline is over. No thread waits."""

from __future__ import annotations

import asyncio

from switchyard.errors import Malformed
from switchyard.model.decode import JsonReader
from switchyard.model.job import JobRequest
from switchyard.model.quote import Quotes
from switchyard.server.http.answer import Receive, Scope, Send, send_json
from switchyard.server.http.authenticate import authenticate_user
from switchyard.server.http.bodies import decode_body, read_bounded
from switchyard.server.http.body_bounds import JOB
from switchyard.server.http.hot import until_gone
from switchyard.server.hub import first_of
from switchyard.server.yard import Yard
from switchyard.service.quote.asking import Asked, answers, begin

_request = JsonReader(JobRequest)
LATE_S = 0.05  # an answer that was committed at the deadline is told a moment after it


async def quote(yard: Yard, scope: Scope, receive: Receive, send: Send) -> None:
    actor = await authenticate_user(yard, scope)
    if scope["query_string"]:
        raise Malformed("This takes no parameters; everything is in the body.")
    body = await read_bounded(scope, receive, JOB)
    request: JobRequest = await decode_body(yard, scope, body, _request, JOB)
    with yard.limiter.holding(actor, "waits"):
        asked = await yard.in_thread(begin, yard.context, yard.submit, actor, request)
        found = await _wait(yard, asked, receive)
    await send_json(send, 200, found)


async def _wait(yard: Yard, asked: Asked, receive: Receive) -> Quotes:
    loop = asyncio.get_running_loop()
    left_us = 0 if asked.round is None else asked.round.deadline_us - yard.context.now_us()
    deadline = loop.time() + left_us / 1e6 + LATE_S
    gone: asyncio.Task[object] = asyncio.ensure_future(until_gone(receive))
    try:
        while True:
            with yard.hub.watching(asked.shape) as waiter:
                # Looked at once registered: an answer that came before would wake nobody.
                found, is_all = await yard.in_thread(answers, yard.context, asked)
                left_s = deadline - loop.time()
                if is_all or left_s <= 0 or gone.done() or yard.hub.is_closing:
                    return found
                await first_of(waiter, gone, left_s)
    finally:
        gone.cancel()
