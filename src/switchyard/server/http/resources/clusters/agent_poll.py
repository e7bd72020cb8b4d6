"""The poll of an agent: reports and output up, leases and cancels down. It is parked until there is an answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import msgspec
from msgspec import Raw

from switchyard.errors import Gone, PlaceAsked, Resync
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import AttemptRef, Lease, OutputChunk, Poll, PollAnswer, Report, Stop
from switchyard.model.cluster.quote import QuoteAsk
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.wire.decode import JsonReader
from switchyard.model.wire.decode_pieces import PieceReader
from switchyard.server.http.agent_admission import admit_agent, rule_of
from switchyard.server.http.bodies.body_bounds import INLINE_BYTES, JOB_BODY, POLL_BODY
from switchyard.server.http.bodies.body_decoding import read_bounded, read_in_pieces
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    encode,
    refuse_parameters,
    require_json,
    send_body,
    wait_for_disconnect,
)
from switchyard.server.http.endpoint import Caller, Endpoint
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.cluster.agents import require_place
from switchyard.service.cluster.graphs import store_agent_graph
from switchyard.service.core.agents.agent_sessions import SyncRequest
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.log_store import OutputWrite
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.core.writes.event_watermark import TROUBLE, confirm_number, store_turn_back
from switchyard.service.lifecycle.lease_request import LeaseRequest
from switchyard.service.quote.quote_answers import store_answers as take_quotes
from switchyard.service.run.lease import LeaseAnswer
from switchyard.service.run.logs import keep_output_outside
from switchyard.service.run.report import ReportAnswers, ReportWrite

_poll = JsonReader(Poll)
_poll_pieces = PieceReader(Poll, values_max=POLL_BODY.values_max, rest_values_max=JOB_BODY.values_max)
INLINE_ATTEMPTS_MAX = 10_000  # put into a set within two milliseconds
POLL_PATH = "/v1/agents/poll"
_PLACE_RETRY_S = 0.25  # how often a sync asks again for the agent's session
_PLACE_S = 8.0  # and for how long; then the agent polls again


async def agent_poll(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/poll. With an inventory it is a sync, which begins a session; else a poll within a session."""
    caller = await admit_agent(server, scope, rule_of("POST", POLL_PATH))
    agent = caller.agent
    refuse_parameters(scope)
    body = await read_bounded(server.bodies, scope, receive, POLL_BODY)
    require_json(scope, body)
    message = await _read_poll(server, body)
    questions: list[QuoteAsk] = []
    await _require_current_database(server, agent, message)
    if message.inventory is not None:
        has_place = server.agents.processes.has_place(agent.id, message.incarnation)
        answers, stops = await _report(server, agent, message) if has_place else ([], [])
        lease_answer = await _sync(server, agent, message, is_named=caller.incarnation is not None)
        server.agents.processes.note_holder(agent.id, message.incarnation)
        if not has_place:
            answers, stops = await _report(server, agent, message)
        await _accept_agent_news(server, agent, message)  # only now: a refused process is not believed
    else:
        await _require_place(server, agent, message.incarnation)
        with server.agents.processes.polling(agent.id, message.incarnation, message.writes):
            await _accept_agent_news(server, agent, message)
            answers, stops = await _report(server, agent, message)
            lease_answer = LeaseAnswer(message.session, [], [], [])
            if message.want or message.wait_s:
                wait_s = 0 if answers else min(message.wait_s, server.settings.bounds.park_s)
                try:
                    lease_answer, questions = await _lease(server, agent, message, wait_s, receive)
                except Resync:
                    server.agents.processes.forget_holder(agent.id)
                    raise
    if lease_answer.leases:
        server.context.tally.leases.add(_cluster_name(server, agent), amount=len(lease_answer.leases))
    answer = PollAnswer(
        session=lease_answer.session,
        leases=lease_answer.leases,
        cancels=lease_answer.cancels,
        stops=[*lease_answer.stops, *stops],
        answers=answers,
        quotes=questions,
        files=server.wakeups.file_asks.take(agent.id) if message.wait_s else [],
        cluster_resources=server.agents.tell_resources(agent),
        is_graph_by_operator=_is_graph_by_operator(server, agent),
        is_closing=server.wakeups.hub.is_closing,
        is_rotation_asked=_is_rotation_asked(server, agent),
        output_bytes_max=server.settings.config.logs.bytes_max,
        event_mark=server.context.committer.watermark.mark,
        takes_details=True,
    )
    is_large = len(answer.cancels) + len(answer.stops) > INLINE_ATTEMPTS_MAX or _has_large_specs(answer.leases)
    await send_body(send, 200, await server.workers.in_thread(encode, answer) if is_large else encode(answer), JSON)


def _has_large_specs(leases: list[Lease]) -> bool:
    """Whether the specs of all leases together are large."""
    return sum(memoryview(lease.spec).nbytes for lease in leases if isinstance(lease.spec, Raw)) > INLINE_BYTES * 16


async def _read_poll(server: ServerRuntime, body: bytes) -> Poll:
    message: Poll
    if len(body) <= INLINE_BYTES:
        message = _poll.read(body)
    else:
        message = await read_in_pieces(server.workers, body, _poll_pieces.read, POLL_BODY)
    return message


async def _require_current_database(server: ServerRuntime, agent: AgentEntry, message: Poll) -> None:
    """Refuse all polls once an agent knows an event that the database does not. Agents go on with what they have."""
    watermark, database = server.context.committer.watermark, server.context.database
    number = 0 if not message.event_mark else watermark.number_of(message.event_mark)
    if watermark.is_unknown(number) and not watermark.is_turned_back:
        if await server.workers.in_thread(confirm_number, watermark, database, number):
            return
        await server.commits.put(BatchCall(partial(store_turn_back, watermark=watermark)))
    if watermark.is_turned_back:
        load = message.load or Load()
        # The agent lives: its attempts are not lost, and clusters say why they get nothing.
        server.agents.note_seen(agent.id, msgspec.structs.replace(load, trouble=TROUBLE))
        raise watermark.refusal()


async def _require_place(server: ServerRuntime, agent: AgentEntry, incarnation: str) -> None:
    """Refuse a process that does not hold the agent's session. The database is read once for each process."""
    if not server.agents.processes.has_place(agent.id, incarnation):
        await server.workers.in_thread(require_place, server.context, agent, incarnation)
        server.agents.processes.note_holder(agent.id, incarnation)


async def _accept_agent_news(server: ServerRuntime, agent: AgentEntry, message: Poll) -> None:
    """Take in that the agent is alive, the load and the graph of its cluster, and its quotes."""
    server.agents.note_seen(agent.id, message.load)
    if message.graph is not None:
        await server.workers.in_thread(store_agent_graph, server.context, agent.id, message.graph)
    if message.quotes:
        await server.workers.in_thread(take_quotes, server.context, agent, message.quotes)


async def _report(server: ServerRuntime, agent: AgentEntry, message: Poll) -> tuple[list[ReportAnswer], list[Stop]]:
    output = await _store_separate_output(server, agent, message)
    if not message.reports:
        return [], []
    settled: ReportAnswers = await server.commits.put(ReportWrite(agent.id, tuple(message.reports), output))
    server.wakeups.hub.wake_jobs({chunk.job for chunk in output})
    stops = [
        Stop(item.job, item.fence, "the fence is too low, or the job is over")
        for item, answer in zip(message.reports, settled.answers, strict=True)
        if answer is ReportAnswer.STOP
    ]
    if differing := sum(map(_has_differences, message.reports, settled.answers)):
        server.context.tally.differences.add(_cluster_name(server, agent), amount=differing)
    return settled.answers, stops


def _has_differences(item: Report, answer: ReportAnswer) -> bool:
    """Whether an attempt ended that was given less or other than its job asked for."""
    if item.usage is None or not item.usage.differences:
        return False
    return item.seen is not ObservedState.RUNNING and answer is ReportAnswer.TAKEN


async def _store_separate_output(server: ServerRuntime, agent: AgentEntry, message: Poll) -> tuple[OutputChunk, ...]:
    """Store output, or return it if it must be stored in one transaction with a report."""
    output = tuple(message.output)
    if not output:
        return ()
    if server.context.logs.is_outside:
        await server.workers.in_thread(keep_output_outside, server.context, agent.id, output)
    elif message.reports:
        return output
    else:
        write = OutputWrite(agent.id, output)
        await server.commits.put_later(write, write.size)
    server.wakeups.hub.wake_jobs({chunk.job for chunk in output})
    return ()


async def _sync(server: ServerRuntime, agent: AgentEntry, message: Poll, *, is_named: bool) -> LeaseAnswer:
    """Begin a session. Wait while the server finds out whether the process that holds the session is alive."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PLACE_S
    inventory = await _attempts(server, message.inventory or [])
    while True:
        try:
            answer: LeaseAnswer = await server.commits.put(
                replace(_sync_ask(server, agent, message, inventory), is_named=is_named)
            )
        except PlaceAsked:
            if loop.time() > until or server.wakeups.hub.is_closing:
                raise
            await asyncio.sleep(_PLACE_RETRY_S)
        else:
            return answer


async def _attempts(server: ServerRuntime, held: list[AttemptRef]) -> frozenset[tuple[str, int]]:
    if len(held) <= INLINE_ATTEMPTS_MAX:
        return _attempts_now(held)
    return await server.workers.in_thread(_attempts_now, held)


def _attempts_now(held: list[AttemptRef]) -> frozenset[tuple[str, int]]:
    return frozenset((attempt.job, attempt.fence) for attempt in held)


def _sync_ask(
    server: ServerRuntime, agent: AgentEntry, message: Poll, inventory: frozenset[tuple[str, int]]
) -> SyncRequest:
    server.agents.empty_polls.pop(agent.id, None)
    return SyncRequest(
        agent_id=agent.id,
        cluster=_cluster_name(server, agent),
        incarnation=message.incarnation,
        inventory=inventory,
        origin=message.origin,
        is_live=server.context.snapshots.is_live(agent.id),
        last_heard=server.agents.processes.last(agent.id),
    )


async def _lease(
    server: ServerRuntime, agent: AgentEntry, message: Poll, wait_s: float, receive: AsgiReceive
) -> tuple[LeaseAnswer, list[QuoteAsk]]:
    """Ask for leases, then park. A poll that repeats an empty one costs no query until its cluster is woken."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    gone: asyncio.Task[object] | None = None
    cluster = _cluster_name(server, agent)
    cancelling = await _attempts(server, message.cancelling)
    request = LeaseRequest(
        agent_id=agent.id,
        cluster_id=agent.cluster_id,
        cluster=cluster,
        session=message.session,
        want=message.want,
        room=message.room,
        cancelling=cancelling,
        backend=agent.backend,
        backends=_backends(server, agent),
        incarnation=message.incarnation,
        left_s=server.context.snapshots.agent_time_left_s(agent.id),
    )
    is_fresh = True
    answer = LeaseAnswer(message.session, [], [], [])
    quote_asks: list[QuoteAsk] = []
    try:
        while not server.wakeups.hub.is_closing and not (gone is not None and gone.done()):
            version = server.wakeups.hub.version(agent.cluster_id)
            if server.agents.empty_polls.get(agent.id) != (version, request):
                answer = await server.commits.put(replace(request, is_fresh=is_fresh))
                if answer.is_asked:
                    break
                if (
                    answer.leases
                    or answer.cancels
                    or (not agent.is_rotation_asked and _is_rotation_asked(server, agent))
                ):
                    break
                server.agents.empty_polls[agent.id] = (version, request)
            is_fresh = False
            questions = server.wakeups.quote_questions
            if questions.may_have() and (quote_asks := await server.workers.in_thread(questions.next, agent)):
                break
            left_s = deadline - loop.time()
            has_news = server.wakeups.file_asks.has(agent.id) or server.agents.has_new_resources(agent)
            if left_s <= 0 or has_news:  # news that come later wake the poll
                break
            gone = gone or asyncio.ensure_future(wait_for_disconnect(receive))
            with server.agents.parked():
                await server.wakeups.hub.wait_cluster(agent.cluster_id, version, left_s, gone)
    finally:
        if gone is not None:
            gone.cancel()
    return answer, quote_asks


def _backends(server: ServerRuntime, agent: AgentEntry) -> frozenset[str]:
    """The backends of all agents of the cluster."""
    member = server.context.snapshots.world.by_id.get(agent.cluster_id)
    return frozenset() if member is None else member.backends


def _is_rotation_asked(server: ServerRuntime, agent: AgentEntry) -> bool:
    now = server.context.snapshots.fleet.agents.get(agent.id)
    return now is not None and now.is_rotation_asked


def _is_graph_by_operator(server: ServerRuntime, agent: AgentEntry) -> bool:
    member = server.context.snapshots.world.by_id.get(agent.cluster_id)
    return member is not None and member.graph is not None and member.graph.is_by_operator


def _cluster_name(server: ServerRuntime, agent: AgentEntry) -> str:
    """Raises Gone if the cluster was deleted since the agent was authenticated."""
    row = server.context.snapshots.fleet.rows.get(agent.cluster_id)
    if row is None:
        raise Gone("The cluster of this agent is gone.")
    return row.name


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        POLL_PATH,
        "Send reports, receive leases",
        PollAnswer,
        serve=agent_poll,
        body=Poll,
        caller=Caller.AGENT,
        body_bound=POLL_BODY,
    ),
)
