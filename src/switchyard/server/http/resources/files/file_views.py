"""The live view of a file in a job's folder: a reader's request waits on the loop until the agent has answered."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from switchyard.errors import BadValue, Conflict
from switchyard.model.files.file_views import (
    VIEW_WAIT_S_MAX,
    FileAnswer,
    FileAsk,
    FileView,
    FileViewQuery,
    ViewState,
    split_name,
)
from switchyard.model.wire.decode import JsonReader
from switchyard.server.file_asks import ANSWER_S
from switchyard.server.http.agent_admission import admit_agent, rule_of
from switchyard.server.http.bodies.body_bounds import SMALL_BODY, VIEW_BODY
from switchyard.server.http.bodies.body_decoding import decode_body, read_bounded
from switchyard.server.http.connections.asgi_messages import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    refuse_parameters,
    send_json,
    wait_for_disconnect,
)
from switchyard.server.http.endpoint import Caller, Endpoint
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.wakeup_hub import wait_for_first
from switchyard.service.core.rights import Actor
from switchyard.service.run.file_views import (
    ViewTarget,
    announce_ask,
    find_answer,
    find_target,
    remove_answer,
    silence_of,
    store_answer,
)

_query = JsonReader(FileViewQuery)
_answer = JsonReader(FileAnswer)
REREAD_S = 1.0  # how late a request hears of a change at another server
ANSWER_PATH = "/v1/agents/files/views"
ANSWER_LIFE_S = 20.0  # how long an answer is kept for another server
Gone = asyncio.Task[object]


async def file_view(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/jobs/{job}/files/live."""
    actor = await server.authenticator.user(scope)
    refuse_parameters(scope)
    body = await read_bounded(server.bodies, scope, receive, SMALL_BODY)
    query: FileViewQuery = await decode_body(server.workers, scope, body, _query, SMALL_BODY)
    name = _name_of(query)
    with server.limiter.hold_open(actor, "waits"):
        gone: Gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            view = await _FileRequest(server, actor, scope["path_params"]["job"], query, name=name, gone=gone).run()
        finally:
            gone.cancel()
    await send_json(send, 200, view)


async def file_answer(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
    """POST /v1/agents/files/views."""
    agent = (await admit_agent(server, scope, rule_of("POST", ANSWER_PATH))).agent
    refuse_parameters(scope)
    body = await read_bounded(server.bodies, scope, receive, VIEW_BODY)
    answer: FileAnswer = await decode_body(server.workers, scope, body, _answer, VIEW_BODY)
    ask = server.wakeups.file_asks.settle(agent.id, answer)
    if ask is not None:
        await server.workers.in_thread(store_answer, server.context, ask, answer)
        asyncio.get_running_loop().call_later(ANSWER_LIFE_S, _remove_later, server, ask)
    await send_json(send, 200, {})


def _remove_later(server: ServerRuntime, ask: FileAsk) -> None:
    if not server.wakeups.hub.is_closing:
        server.workers.start(lambda: remove_answer(server.context, ask))


def _name_of(query: FileViewQuery) -> bytes:
    if query.name and query.name_bytes is not None:
        raise BadValue("Give `name` or `name_bytes`, not both.")
    name = query.name.encode() if query.name_bytes is None else query.name_bytes
    try:
        split_name(name)
    except ValueError as exc:
        shown = name.decode(errors="backslashreplace")[:200]
        raise BadValue(
            f"The file {shown!r} cannot be looked at: {exc}.",
            next_step="Name a file in the job's folder, such as results/score.csv.",
        ) from exc
    return name


class _FileRequest:
    """One request of a reader, until there is something to tell or the time is over."""

    def __init__(
        self, server: ServerRuntime, actor: Actor, ref: str, query: FileViewQuery, *, name: bytes, gone: Gone
    ) -> None:
        self._server, self._actor, self._ref, self._query, self._name, self._gone = (
            server,
            actor,
            ref,
            query,
            name,
            gone,
        )
        self._asks = server.wakeups.file_asks
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._deadline = loop.time() + min(query.wait_s, VIEW_WAIT_S_MAX, server.settings.bounds.wait_s)

    async def run(self) -> FileView:
        target = await self._find()
        while True:
            with self._server.wakeups.hub.job_waiter(target.job) as waiter:
                target = await self._find()  # after the waiter is there: a change in between would wake nobody
                if (view := self._without_agent(target)) is not None:
                    return view
                if target.agent is not None:
                    break
                left_s = self._deadline - self._time()
                if left_s <= 0 or self._is_ending:
                    why = f"Job {target.job} is {target.state}; this attempt has no folder yet."
                    return _view_of(target, ViewState.PENDING, why)
                await wait_for_first(waiter, self._gone, min(left_s, REREAD_S))
        file = (target.job, target.fence, b"/".join(split_name(self._name)))
        self._asks.watch(self._actor.id, file)
        is_following = False
        try:
            await asyncio.sleep(self._asks.pause_s(self._actor.id))
            view = await self._ask(target)
            is_following = self._query.wait_s > 0
        finally:
            self._asks.leave(self._actor.id, file, is_following=is_following)
        self._asks.count_bytes(self._actor.id, len(view.data))
        return view

    async def _find(self) -> ViewTarget:
        query = self._query
        return await self._server.workers.in_thread(
            find_target, self._server.context, self._actor, self._ref, task=query.task, attempt=query.attempt
        )

    @property
    def _is_ending(self) -> bool:
        return self._gone.done() or self._server.wakeups.hub.is_closing

    def _without_agent(self, target: ViewTarget) -> FileView | None:
        """The answer that needs no agent, if there is one."""
        if target.is_over and not (self._query.is_final and target.agent is not None):
            return _view_of(target, ViewState.OVER)
        if silence := silence_of(self._server.context, target):
            return _view_of(target, ViewState.AWAY, silence)
        return None

    async def _ask(self, target: ViewTarget) -> FileView:
        """Ask the agent. The job's end ends the wait, too."""
        assert target.agent is not None
        assert target.cluster is not None
        server, query = self._server, self._query
        is_alone = server.context.database.is_sqlite  # the one server of its database
        wait_s = 0.0 if target.is_over else max(0.0, self._deadline - self._time())
        until = self._time() + wait_s + ANSWER_S
        ask = FileAsk(
            id=self._asks.new_id(),
            agent=target.agent,
            cluster=target.cluster,
            job=target.job,
            fence=target.fence,
            name=self._name,
            offset=query.offset,
            version=query.version,
            wait_s=wait_s,
        )
        with self._asks.opened(ask) as answer:
            server.wakeups.hub.wake_polls(target.cluster)
            if not is_alone:
                await server.workers.in_thread(announce_ask, server.context, ask)
            while True:
                with server.wakeups.hub.job_waiter(target.job) as waiter:
                    now = await self._find()
                    if now.is_over and not target.is_over:
                        return _view_of(now, ViewState.OVER)
                    elsewhere = None if is_alone else await server.workers.in_thread(find_answer, server.context, ask)
                    left_s = until - self._time()
                    if elsewhere is None and not answer.done() and left_s > 0 and not self._is_ending:
                        pauses: set[asyncio.Future[Any]] = {answer, waiter, self._gone}
                        timeout_s = left_s if is_alone else min(left_s, REREAD_S)
                        await asyncio.wait(pauses, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                    if elsewhere is not None or answer.done():
                        return self._view(target, elsewhere or answer.result())
                    if left_s <= 0 or self._is_ending:
                        why = f"The agent that runs job {target.job} did not answer within {ANSWER_S:.0f} s."
                        return _view_of(target, ViewState.AWAY, why)

    def _view(self, target: ViewTarget, answer: FileAnswer) -> FileView:
        shown = self._name.decode(errors="backslashreplace")[:200]
        if answer.state is ViewState.REFUSED:
            raise Conflict(
                f"The file {shown!r} of job {target.job} cannot be looked at: {target.text(answer.why)}.",
                next_step="Name a plain file in the job's folder, such as results/score.csv.",
            )
        state, why = answer.state, ""
        if state is ViewState.GONE and not target.is_over:
            state, why = ViewState.PENDING, f"Job {target.job} is {target.state}; this attempt has no folder yet."
        elif state is ViewState.ABSENT:
            why = f"Job {target.job} has no file {shown!r} as yet."
        return replace(
            _view_of(target, state, why),
            offset=answer.offset,
            data=answer.data,
            size=answer.size,
            version=answer.version,
            is_restarted=answer.is_restarted,
        )


def _view_of(target: ViewTarget, state: ViewState, why: str = "") -> FileView:
    return FileView(
        job=target.job, state=state, attempt=target.attempt, fence=target.fence, is_over=target.is_over, why=why
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/jobs/{job}/files/live",
        "A part of a file in the folder of a running job, from its agent",
        FileView,
        serve=file_view,
        body=FileViewQuery,
    ),
    Endpoint(
        "POST",
        ANSWER_PATH,
        "What the agent saw of a file that somebody looks at",
        dict[str, str],
        serve=file_answer,
        body=FileAnswer,
        caller=Caller.AGENT,
        body_bound=VIEW_BODY,
    ),
)
