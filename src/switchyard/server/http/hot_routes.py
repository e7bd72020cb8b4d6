"""The hottest routes, as plain ASGI: submit a job, ask whether it fits, and the agent's poll."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from msgspec import Raw

from switchyard.errors import BadRequest, Denied, Gone, LimitReached, Malformed, PlaceAsked, PolicyRefused, Resync
from switchyard.model.api import BULK_JOBS_MAX, BulkRequest
from switchyard.model.decode import JsonReader
from switchyard.model.decode_pieces import PieceReader, split_bulk_body
from switchyard.model.job import JobRequest, State
from switchyard.model.lifecycle import ReportAnswer
from switchyard.model.names import KEY_PATTERN
from switchyard.model.poll import AttemptRef, Lease, OutputChunk, Poll, PollAnswer, Stop
from switchyard.model.quote import QuoteAsk
from switchyard.model.verdict import FitRequest
from switchyard.server.bulk_turns import commit_bulk
from switchyard.server.http.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    encode,
    encode_bulk,
    header,
    require_json,
    send_body,
    send_json,
)
from switchyard.server.http.authenticate import authenticate_agent, authenticate_user
from switchyard.server.http.body_bounds import BULK_BODY, INLINE_BYTES, JOB_BODY, POLL_BODY, QUICK_DEMAND_BYTES
from switchyard.server.http.body_decoding import decode_body, read_bounded, read_in_pieces, read_within_bound
from switchyard.server.runtime import ServerRuntime
from switchyard.service.cluster.agents import require_place
from switchyard.service.cluster.graphs import store_agent_graph
from switchyard.service.fleet import AgentEntry
from switchyard.service.quote.inquiries import store_answers as take_quotes
from switchyard.service.rights import Actor
from switchyard.service.run.agent_sessions import SyncRequest
from switchyard.service.run.lease import LeaseAnswer, LeaseRequest
from switchyard.service.run.log_store import OutputWrite
from switchyard.service.run.logs import keep_output_outside
from switchyard.service.run.report import ReportAnswers, ReportWrite
from switchyard.service.submit.bulk_pieces import BulkPieces
from switchyard.service.submit.new_job import JobInsert
from switchyard.service.submit.submit import AcceptedJob, TooSlowForLoop

_job_request = JsonReader(JobRequest)
_fit = JsonReader(FitRequest)
_poll = JsonReader(Poll)
_poll_pieces = PieceReader(Poll, values_max=POLL_BODY.values_max, rest_values_max=JOB_BODY.values_max)
_bulk_request = JsonReader(BulkRequest, is_checked_whole=False)
_KEY_BYTES_MAX = 200
INLINE_ATTEMPTS_MAX = 10_000  # put into a set within two milliseconds
_PLACE_RETRY_S = 0.25  # how often a sync looks whether it may have the agent's place
_PLACE_S = 8.0  # and for how long; then the agent asks again


async def submit_job(yard: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/jobs: decode, admit, route, commit; 201 after the commit."""
    actor = await authenticate_user(yard, scope)
    if scope["query_string"]:
        raise Malformed("A submit takes no parameters; everything is in the body.")
    body = await read_bounded(scope, receive, JOB_BODY)
    request: JobRequest = await decode_body(yard, scope, body, _job_request, JOB_BODY)
    key = _idempotency_key(scope)
    try:
        write = await _decide(yard, scope, actor, request, key=key, body=body)
        accepted: AcceptedJob = await yard.commit(write)
    except (BadRequest, Denied, LimitReached, PolicyRefused) as exc:
        # What was accepted stays so: the answer may have been lost, and the world has changed since.
        again = await yard.in_thread(yard.submit.repeated, actor, key=key, body=body) if key else None
        if again is None:
            yard.context.tally.refusals.add(exc.code, "admit")
            raise
        accepted = again
    await send_json(send, 201 if accepted.is_new else 200, accepted.created)


async def submit_bulk(yard: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/jobs/bulk: thousands in one request. Decoded and decided on a thread, committed in few writes."""
    actor = await authenticate_user(yard, scope)
    if scope["query_string"]:
        raise Malformed("A submit takes no parameters; everything is in the body.")
    body = await read_bounded(scope, receive, BULK_BODY)
    require_json(scope, body)
    key = _idempotency_key(scope)
    with yard.bulks.place(len(body)):
        async with yard.bulk_turns.taken(actor.name, size=len(body)):
            pieces = await yard.bulks.run_in_place(_decide_bulk, yard, actor, key, body)
            yard.limiter.charge_jobs(actor, pieces.total)
            accepted = await commit_bulk(yard, pieces, user=actor.name)
        answer = await yard.in_thread(encode_bulk, accepted.answer)
    await send_body(send, 201 if accepted.is_new else 200, answer, JSON)


def _decide_bulk(yard: ServerRuntime, actor: Actor, key: str | None, body: bytes) -> BulkPieces:
    request = read_within_bound(body, _read_bulk, BULK_BODY)
    yard.context.snapshots.refresh()  # a no in it is final
    return BulkPieces(yard.bulk.decide(actor, request, key=key, body=body))


def _read_bulk(body: bytes) -> BulkRequest:
    """The jobs are left as they are: each is decoded by itself."""
    request: BulkRequest
    if len(body) <= INLINE_BYTES:
        request = _bulk_request.read(body)
        return request
    jobs, rest = split_bulk_body(
        body, items_max=BULK_JOBS_MAX, item_bytes_max=JOB_BODY.bytes_max, values_max=BULK_BODY.values_max
    )
    request = _bulk_request.read(rest)
    return BulkRequest([Raw(job) for job in jobs], request.each)


async def _decide(
    yard: ServerRuntime, scope: AsgiScope, actor: Actor, request: JobRequest, *, key: str | None, body: bytes
) -> JobInsert:
    """A no is final, so it is never said from a snapshot that another replica may have outdated."""
    try:
        write = await _decide_once(yard, actor, request, key=key, body=body)
        if write.created.state != State.REJECTED.value:
            return write
    except (BadRequest, Denied, PolicyRefused):
        pass
    await yard.in_thread(yard.context.snapshots.refresh)
    actor = await authenticate_user(yard, scope)  # with the grants of now
    return await _decide_once(yard, actor, request, key=key, body=body)


async def _decide_once(
    yard: ServerRuntime, actor: Actor, request: JobRequest, *, key: str | None, body: bytes
) -> JobInsert:
    """Here where that is quick; on a thread where the database may be asked; else where reckoning takes turns."""
    if not yard.submit.is_quick(request):
        return await yard.in_thread(yard.submit.decide, actor, request, key=key, body=body)
    if request.spec.demand is None and len(body) > INLINE_BYTES:
        decide = partial(yard.submit.decide, key=key, body=body)
        return await yard.decoders.run(decide, actor, request, size=len(body))  # its hash and its text take time
    if request.spec.demand is not None and len(body) > QUICK_DEMAND_BYTES:
        return await yard.in_turn(yard.submit.decide, actor, request, key=key, body=body)
    try:
        return yard.submit.decide(actor, request, key=key, body=body, is_quick=True)
    except LimitReached:  # a no is not said before the database was asked
        return await yard.in_thread(yard.submit.decide, actor, request, key=key, body=body)
    except TooSlowForLoop:
        return await yard.in_turn(yard.submit.decide, actor, request, key=key, body=body)


def _idempotency_key(scope: AsgiScope) -> str | None:
    value = header(scope, b"idempotency-key")
    if value is None:
        return None
    text = value.decode("latin-1")
    if len(value) > _KEY_BYTES_MAX or not re.match(KEY_PATTERN, text):
        raise Malformed("The Idempotency-Key is not 1 to 200 printable ASCII characters.")
    return text


async def check_fit(yard: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/clusters/fit: an answer that was given before, and still holds, is given again from the loop."""
    actor = await authenticate_user(yard, scope)
    if scope["query_string"]:
        raise Malformed("This takes no parameters; everything is in the body.")
    raw = await read_bounded(scope, receive, JOB_BODY)
    request: FitRequest = await decode_body(yard, scope, raw, _fit, JOB_BODY)
    is_plain = (
        len(raw) <= INLINE_BYTES and request.job is not None and request.job.spec.demand is None
    )  # a jobspec may take long even to be read
    body = yard.fit.kept(actor, request) if is_plain else None
    if body is None:
        body = await yard.in_thread(yard.fit.answer, actor, request)
    await send_body(send, 200, body, JSON)


async def agent_poll(yard: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/poll: reports up, leases down; parked until there is something."""
    agent = await authenticate_agent(yard, scope)
    if scope["query_string"]:
        raise Malformed("A poll takes no parameters; everything is in the body.")
    body = await read_bounded(scope, receive, POLL_BODY)
    require_json(scope, body)
    message = await _read_poll(yard, body)
    asks: list[QuoteAsk] = []
    if message.inventory is not None:
        has_place = yard.voices.has_place(agent.id, message.incarnation)
        answers, stops = await _report(yard, agent, message) if has_place else ([], [])
        given = await _sync(yard, agent, message)
        yard.voices.note_holder(agent.id, message.incarnation)
        if not has_place:
            answers, stops = await _report(yard, agent, message)
        await _accept_agent_news(yard, agent, message)  # only now: of a process that is refused nothing is believed
    else:
        await _require_place(yard, agent, message.incarnation)
        with yard.voices.polling(agent.id, message.incarnation, message.writes):
            await _accept_agent_news(yard, agent, message)
            answers, stops = await _report(yard, agent, message)
            given = LeaseAnswer(message.session, [], [], [])
            if message.want or message.wait_s:
                wait_s = 0 if answers else min(message.wait_s, yard.settings.bounds.park_s)
                try:
                    given, asks = await _lease(yard, agent, message, wait_s, receive)
                except Resync:
                    yard.voices.forget_holder(agent.id)
                    raise
    if given.leases:
        yard.context.tally.leases.add(_cluster_name(yard, agent), amount=len(given.leases))
    answer = PollAnswer(
        session=given.session,
        leases=given.leases,
        cancels=given.cancels,
        stops=[*given.stops, *stops],
        answers=answers,
        quotes=asks,
        is_closing=yard.hub.is_closing,
        is_rotation_asked=_is_rotation_asked(yard, agent),
        output_bytes_max=yard.settings.config.logs.bytes_max,
    )
    is_large = len(answer.cancels) + len(answer.stops) > INLINE_ATTEMPTS_MAX or _has_large_specs(answer.leases)
    await send_body(send, 200, await yard.in_thread(encode, answer) if is_large else encode(answer), JSON)


def _has_large_specs(leases: list[Lease]) -> bool:
    """Whether their specs together are large."""
    return sum(memoryview(lease.spec).nbytes for lease in leases if isinstance(lease.spec, Raw)) > INLINE_BYTES * 16


async def _read_poll(yard: ServerRuntime, body: bytes) -> Poll:
    message: Poll
    if len(body) <= INLINE_BYTES:
        message = _poll.read(body)
    else:
        message = await read_in_pieces(yard, body, _poll_pieces.read, POLL_BODY)
    return message


async def _require_place(yard: ServerRuntime, agent: AgentEntry, incarnation: str) -> None:
    """Only the process that began the agent's session is listened to. The database is asked once for each process."""
    if not yard.voices.has_place(agent.id, incarnation):
        await yard.in_thread(require_place, yard.context, agent, incarnation)
        yard.voices.note_holder(agent.id, incarnation)


async def _accept_agent_news(yard: ServerRuntime, agent: AgentEntry, message: Poll) -> None:
    """The agent is alive; how its cluster is, what it has, and what it answers about jobs that may come."""
    yard.seen(agent.id, message.load)
    if message.graph is not None:
        await yard.in_thread(store_agent_graph, yard.context, agent.id, message.graph)
    if message.quotes:
        await yard.in_thread(take_quotes, yard.context, agent, message.quotes)


async def _report(yard: ServerRuntime, agent: AgentEntry, message: Poll) -> tuple[list[ReportAnswer], list[Stop]]:
    output = await _store_separate_output(yard, agent, message)
    if not message.reports:
        return [], []
    settled: ReportAnswers = await yard.commit(ReportWrite(agent.id, tuple(message.reports), output))
    yard.hub.tell({chunk.job for chunk in output})
    stops = [
        Stop(item.job, item.fence, "the fence is too low, or the job is over")
        for item, answer in zip(message.reports, settled.answers, strict=True)
        if answer is ReportAnswer.STOP
    ]
    return settled.answers, stops


async def _store_separate_output(yard: ServerRuntime, agent: AgentEntry, message: Poll) -> tuple[OutputChunk, ...]:
    """Keep the output that need not be in one transaction with a report, and give back what must be."""
    output = tuple(message.output)
    if not output:
        return ()
    if yard.context.logs.is_outside:
        await yard.in_thread(keep_output_outside, yard.context, agent.id, output)
    elif message.reports:
        return output
    else:
        write = OutputWrite(agent.id, output)
        await yard.commit_later(write, write.size)
    yard.hub.tell({chunk.job for chunk in output})
    return ()


async def _sync(yard: ServerRuntime, agent: AgentEntry, message: Poll) -> LeaseAnswer:
    """Begin a session. While the process that had the agent's place is asked whether it lives, the answer waits."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PLACE_S
    inventory = await _attempts(yard, message.inventory or [])
    while True:
        try:
            given: LeaseAnswer = await yard.commit(_sync_ask(yard, agent, message, inventory))
        except PlaceAsked:
            if loop.time() > until or yard.hub.is_closing:
                raise
            await asyncio.sleep(_PLACE_RETRY_S)
        else:
            return given


async def _attempts(yard: ServerRuntime, held: list[AttemptRef]) -> frozenset[tuple[str, int]]:
    return _attempts_now(held) if len(held) <= INLINE_ATTEMPTS_MAX else await yard.in_thread(_attempts_now, held)


def _attempts_now(held: list[AttemptRef]) -> frozenset[tuple[str, int]]:
    return frozenset((each.job, each.fence) for each in held)


def _sync_ask(
    yard: ServerRuntime, agent: AgentEntry, message: Poll, inventory: frozenset[tuple[str, int]]
) -> SyncRequest:
    yard.idle.pop(agent.id, None)
    return SyncRequest(
        agent.id,
        _cluster_name(yard, agent),
        message.incarnation,
        inventory,
        message.origin,
        yard.context.snapshots.is_live(agent.id),
        yard.voices.last(agent.id),
    )


async def _lease(
    yard: ServerRuntime, agent: AgentEntry, message: Poll, wait_s: float, receive: AsgiReceive
) -> tuple[LeaseAnswer, list[QuoteAsk]]:
    """Look once, then park. An agent that got nothing and asks the same again costs no query until it is woken."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    gone: asyncio.Task[object] | None = None
    cluster = _cluster_name(yard, agent)
    cancelling = await _attempts(yard, message.cancelling)
    ask = LeaseRequest(
        agent.id,
        agent.cluster_id,
        cluster,
        message.session,
        message.want,
        message.room,
        cancelling,
        agent.backend,
        _backends(yard, agent),
        message.incarnation,
    )
    is_fresh = True
    given = LeaseAnswer(message.session, [], [], [])
    asks: list[QuoteAsk] = []
    try:
        while not yard.hub.is_closing and not (gone is not None and gone.done()):
            version = yard.hub.version(agent.cluster_id)
            if yard.idle.get(agent.id) != (version, ask):
                given = await yard.commit(replace(ask, is_fresh=is_fresh))
                if given.is_asked:
                    break
                if given.leases or given.cancels or (not agent.is_rotation_asked and _is_rotation_asked(yard, agent)):
                    break
                yard.idle[agent.id] = (version, ask)
            is_fresh = False
            asks = await yard.in_thread(yard.handing.next, agent) if yard.handing.may_have() else []
            if asks:
                break
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            gone = gone or asyncio.ensure_future(wait_for_disconnect(receive))
            with _parked(yard, agent.id):
                await yard.hub.wait_cluster(agent.cluster_id, version, left_s, gone)
    finally:
        if gone is not None:
            gone.cancel()
    return given, asks


def _backends(yard: ServerRuntime, agent: AgentEntry) -> frozenset[str]:
    """What the agents of its cluster run jobs with."""
    member = yard.context.snapshots.world.by_id.get(agent.cluster_id)
    return frozenset() if member is None else member.backends


def _is_rotation_asked(yard: ServerRuntime, agent: AgentEntry) -> bool:
    now = yard.context.snapshots.fleet.agents.get(agent.id)
    return now is not None and now.is_rotation_asked


def _cluster_name(yard: ServerRuntime, agent: AgentEntry) -> str:
    """It may have been deleted since the agent was authenticated."""
    row = yard.context.snapshots.fleet.rows.get(agent.cluster_id)
    if row is None:
        raise Gone("The cluster of this agent is gone.")
    return row.name


async def wait_for_disconnect(receive: AsgiReceive) -> object:
    while (await receive())["type"] != "http.disconnect":
        pass
    return None


@contextlib.contextmanager
def _parked(yard: ServerRuntime, agent_id: str) -> Iterator[None]:
    yard.parked[agent_id] = yard.parked.get(agent_id, 0) + 1
    try:
        yield
    finally:
        left = yard.parked[agent_id] - 1
        if left:
            yard.parked[agent_id] = left
        else:
            del yard.parked[agent_id]
