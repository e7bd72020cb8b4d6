"""POST /v1/quotes: ask, then wait on the loop until all have answered or the deadline is over. No thread waits."""

from __future__ import annotations

import asyncio

from switchyard.errors import Malformed
from switchyard.model.decode import JsonReader
from switchyard.model.job import JobRequest
from switchyard.model.quote import Quotes
from switchyard.server.http.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, send_json
from switchyard.server.http.authenticate import authenticate_user
from switchyard.server.http.body_bounds import JOB_BODY
from switchyard.server.http.body_decoding import decode_body, read_bounded
from switchyard.server.http.hot_routes import wait_for_disconnect
from switchyard.server.runtime import ServerRuntime
from switchyard.server.wakeup_hub import wait_for_first
from switchyard.service.quote.quotes_on_request import OpenInquiry, begin_inquiry, inquiry_answers

_request = JsonReader(JobRequest)
DEADLINE_GRACE_S = 0.05  # an answer that was committed at the deadline is told a moment after it


async def serve_quotes(yard: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    actor = await authenticate_user(yard, scope)
    if scope["query_string"]:
        raise Malformed("This takes no parameters; everything is in the body.")
    body = await read_bounded(scope, receive, JOB_BODY)
    request: JobRequest = await decode_body(yard, scope, body, _request, JOB_BODY)
    with yard.limiter.holding(actor, "waits"):
        asked = await yard.in_thread(begin_inquiry, yard.context, yard.submit, actor, request)
        found = await _wait(yard, asked, receive)
    await send_json(send, 200, found)


async def _wait(yard: ServerRuntime, asked: OpenInquiry, receive: AsgiReceive) -> Quotes:
    loop = asyncio.get_running_loop()
    left_us = 0 if asked.round is None else asked.round.deadline_us - yard.context.now_us()
    deadline = loop.time() + left_us / 1e6 + DEADLINE_GRACE_S
    gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        while True:
            with yard.hub.watching(asked.shape) as waiter:
                # Looked at once registered: an answer that came before would wake nobody.
                found, is_all = await yard.in_thread(inquiry_answers, yard.context, asked)
                left_s = deadline - loop.time()
                if is_all or left_s <= 0 or gone.done() or yard.hub.is_closing:
                    return found
                await wait_for_first(waiter, gone, left_s)
    finally:
        gone.cancel()
