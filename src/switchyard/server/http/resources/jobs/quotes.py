"""Quotes without a job: ask the clusters, then wait on the loop for their answers or the deadline."""

from __future__ import annotations

import asyncio

from switchyard.errors import Malformed
from switchyard.model.cluster.quote import Quotes
from switchyard.model.job.job import JobRequest
from switchyard.model.wire.decode import JsonReader
from switchyard.server.http.bodies.body_bounds import JOB_BODY
from switchyard.server.http.bodies.body_decoding import decode_body, read_bounded
from switchyard.server.http.connections.asgi_messages import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    send_json,
    wait_for_disconnect,
)
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.wakeup_hub import wait_for_first
from switchyard.service.submit.quotes_on_request import OpenInquiry, begin_inquiry, inquiry_answers

_request = JsonReader(JobRequest)
DEADLINE_GRACE_S = 0.05  # an answer that is committed at the deadline arrives a moment later


async def serve_quotes(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    actor = await server.authenticator.user(scope)
    if scope["query_string"]:
        raise Malformed("This takes no parameters; everything is in the body.")
    body = await read_bounded(server.bodies, scope, receive, JOB_BODY)
    request: JobRequest = await decode_body(server.workers, scope, body, _request, JOB_BODY)
    with server.limiter.hold_open(actor, "waits"):
        inquiry = await server.workers.in_thread(begin_inquiry, server.context, server.services.submit, actor, request)
        quotes = await _wait(server, inquiry, receive)
    await send_json(send, 200, quotes)


async def _wait(server: ServerRuntime, inquiry: OpenInquiry, receive: AsgiReceive) -> Quotes:
    loop = asyncio.get_running_loop()
    left_us = 0 if inquiry.window is None else inquiry.window.deadline_us - server.context.now_us()
    deadline = loop.time() + left_us / 1e6 + DEADLINE_GRACE_S
    gone: asyncio.Task[object] = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        while True:
            with server.wakeups.hub.job_waiter(inquiry.shape) as waiter:
                # Register first, then read: an answer in between would wake nobody.
                quotes, is_all = await server.workers.in_thread(inquiry_answers, server.context, inquiry)
                left_s = deadline - loop.time()
                if is_all or left_s <= 0 or gone.done() or server.wakeups.hub.is_closing:
                    return quotes
                await wait_for_first(waiter, gone, left_s)
    finally:
        gone.cancel()


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/quotes",
        "When each cluster would start a job, and at what cost; store nothing",
        Quotes,
        serve=serve_quotes,
        body=JobRequest,
        is_ruled=True,
        body_bound=JOB_BODY,
    ),
)
