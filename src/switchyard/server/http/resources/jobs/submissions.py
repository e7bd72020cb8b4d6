"""Submit jobs: one, many at once, or only as a plan or as a question for quotes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec import Raw

from switchyard.errors import BadRequest, Denied, LimitReached, PolicyRefused, YardError
from switchyard.model.cluster.quote import Quotes
from switchyard.model.cluster.verdict import Plan
from switchyard.model.job.job import JobRequest, State
from switchyard.model.wire.api import BULK_JOBS_MAX, BulkAnswer, BulkRequest, CreatedJob
from switchyard.model.wire.decode import JsonReader
from switchyard.model.wire.decode_pieces import split_bulk_body
from switchyard.server.commits import commit_bulk
from switchyard.server.http.bodies.body_bounds import BULK_BODY, INLINE_BYTES, JOB_BODY, QUICK_DEMAND_BYTES
from switchyard.server.http.bodies.body_decoding import decode_body, read_bounded, read_within_bound
from switchyard.server.http.call import Call, read_idempotency_key
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    encode_bulk,
    refuse_gone,
    refuse_parameters,
    require_json,
    send_body,
    send_json,
    wait_for_disconnect,
)
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.wakeup_hub import wait_for_first
from switchyard.server.services import Services
from switchyard.service.core.rights import Actor
from switchyard.service.placement.decision import TooSlowForLoop
from switchyard.service.submit.bulk import BulkPieces
from switchyard.service.submit.new_job import AcceptedJob, JobInsert
from switchyard.service.submit.quotes_on_request import OpenInquiry, begin_inquiry, inquiry_answers

_job_request = JsonReader(JobRequest)
_bulk_request = JsonReader(BulkRequest, is_checked_whole=False)


async def submit_job(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/jobs: decode, admit, route, commit; 201 after the commit."""
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    body = await read_bounded(server.bodies, scope, receive, JOB_BODY)
    request: JobRequest = await decode_body(server.workers, scope, body, _job_request, JOB_BODY)
    key = read_idempotency_key(scope)
    prepared = await _prepare(server, actor, request, key=key, body=body)
    if isinstance(prepared, AcceptedJob):
        await send_json(send, 200, prepared.created)
        return
    request = prepared
    try:
        write = await _decide(server, scope, actor, request, key=key, body=body)
        accepted: AcceptedJob = await server.commits.put(write)
    except (BadRequest, Denied, LimitReached, PolicyRefused) as exc:
        # A job that was accepted under this key stays accepted: its answer may have been lost, and the world changed.
        earlier = await _accepted_earlier(server, actor, key=key, body=body)
        if earlier is None:
            server.context.tally.refusals.add(exc.code, "admit")
            raise
        accepted = earlier
    await send_json(send, 201 if accepted.is_new else 200, accepted.created)


async def _prepare(
    server: ServerRuntime, actor: Actor, request: JobRequest, *, key: str | None, body: bytes
) -> JobRequest | AcceptedJob:
    """Return the request to decide; if it cannot be prepared now, the job that was accepted under this key."""
    if not server.services.submit.needs_preparation(request):
        return request
    try:
        return await server.workers.in_file_thread(server.services.submit.prepare, actor, request)
    except YardError as exc:
        earlier = await _accepted_earlier(server, actor, key=key, body=body)
        if earlier is None:
            server.context.tally.refusals.add(exc.code, "prepare")
            raise
        return earlier


async def _accepted_earlier(server: ServerRuntime, actor: Actor, *, key: str | None, body: bytes) -> AcceptedJob | None:
    if key is None:
        return None
    return await server.workers.in_thread(server.services.submit.repeated, actor, key=key, body=body)


async def _decide(
    server: ServerRuntime, scope: AsgiScope, actor: Actor, request: JobRequest, *, key: str | None, body: bytes
) -> JobInsert:
    """Decide; before a refusal is final, decide again from fresh snapshots: another server may have changed them.

    So it is with a saved submit token that opens nothing.
    """
    decide = partial(server.services.submit.decide, key=key, body=body)
    try:
        write = await _decide_once(server, actor, request, decide, size=len(body))
        if write.created.state != State.REJECTED.value and not write.created.stale_tokens:
            return write
    except (BadRequest, Denied, PolicyRefused):
        pass
    await server.workers.in_thread(server.context.snapshots.refresh)
    actor = await server.authenticator.user(scope)  # with the current grants
    return await _decide_once(server, actor, request, decide, size=len(body))


async def _decide_once(
    server: ServerRuntime, actor: Actor, request: JobRequest, decide: Callable[..., JobInsert], *, size: int
) -> JobInsert:
    """Decide on the loop where that is quick, on a thread where the database may be read or the decision takes long."""
    workers, has_demand = server.workers, request.spec.demand is not None
    if not server.services.submit.is_quick(request):
        return await workers.in_thread(decide, actor, request)
    if not has_demand and size > INLINE_BYTES:  # hashing and encoding the body takes time
        return await workers.decoders.run(decide, actor, request, size=size)
    if has_demand and size > QUICK_DEMAND_BYTES:
        return await workers.in_decision_thread(decide, actor, request)
    try:
        return decide(actor, request, is_quick=True)
    except LimitReached:  # before it is refused, the database is read
        return await workers.in_thread(decide, actor, request)
    except TooSlowForLoop:
        return await workers.in_decision_thread(decide, actor, request)


async def submit_bulk(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/jobs/bulk: decode and decide thousands of jobs on a thread, commit them in few writes."""
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    body = await read_bounded(server.bodies, scope, receive, BULK_BODY)
    require_json(scope, body)
    key = read_idempotency_key(scope)
    with server.workers.bulks.place(len(body)):
        async with server.workers.bulk_turns.hold(actor.name, size=len(body)):
            pieces = await server.workers.bulks.run_in_place(_decide_bulk, server.services, actor, key, body)
            server.limiter.charge_jobs(actor, pieces.total)
            accepted = await commit_bulk(
                server.commits, pieces, user=actor.name, stop_if_gone=partial(refuse_gone, scope)
            )
        answer = await server.workers.in_thread(encode_bulk, accepted.answer)
    await send_body(send, 201 if accepted.is_new else 200, answer, JSON)


def _decide_bulk(services: Services, actor: Actor, key: str | None, body: bytes) -> BulkPieces:
    request = read_within_bound(body, _read_bulk, BULK_BODY)
    services.context.snapshots.refresh()  # refusals are final, so they need fresh snapshots
    return BulkPieces(services.bulk.decide(actor, request, key=key, body=body))


def _read_bulk(body: bytes) -> BulkRequest:
    """Decode all but the jobs: each job is decoded by itself later."""
    request: BulkRequest
    if len(body) <= INLINE_BYTES:
        request = _bulk_request.read(body)
        return request
    jobs, remainder = split_bulk_body(
        body, items_max=BULK_JOBS_MAX, item_bytes_max=JOB_BODY.bytes_max, values_max=BULK_BODY.values_max
    )
    request = _bulk_request.read(remainder)
    return BulkRequest([Raw(job) for job in jobs], request.each)


def plan(call: Call) -> Plan:
    return call.services.submit.plan(call.actor, call.body)


DEADLINE_GRACE_S = 0.05  # an answer that is committed at the deadline arrives a moment later


async def serve_quotes(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    body = await read_bounded(server.bodies, scope, receive, JOB_BODY)
    request: JobRequest = await decode_body(server.workers, scope, body, _job_request, JOB_BODY)
    with server.limiter.hold_open(actor, "waits"):
        inquiry = await server.workers.in_thread(begin_inquiry, server.context, server.services.submit, actor, request)
        quotes = await _wait_for_quotes(server, inquiry, receive)
    await send_json(send, 200, quotes)


async def _wait_for_quotes(server: ServerRuntime, inquiry: OpenInquiry, receive: AsgiReceive) -> Quotes:
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
        "/v1/jobs",
        "Submit a job; 201 once it is durable",
        CreatedJob,
        serve=submit_job,
        body=JobRequest,
        status=201,
        has_idempotency_key=True,
        is_ruled=True,
        body_bound=JOB_BODY,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/bulk",
        "Submit many jobs: all or none, or each by itself",
        BulkAnswer,
        serve=submit_bulk,
        body=BulkRequest,
        status=201,
        body_bound=BULK_BODY,
        has_idempotency_key=True,
        is_ruled=True,
    ),
    Endpoint(
        "POST",
        "/v1/plan",
        "Decide where a job would go; store nothing",
        Plan,
        plan,
        JobRequest,
        is_ruled=True,
        body_bound=JOB_BODY,
    ),
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
