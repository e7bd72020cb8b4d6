"""Serves one endpoint by its fields: authenticate, read the body, run the handler on a thread, encode the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from switchyard.errors import Denied, Internal, Malformed, NotFound, UnknownName, YardError
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.wire.decode import JsonReader
from switchyard.server.http.agent_admission import read_incarnation, rule_of
from switchyard.server.http.authenticate import bearer, has_agent_credential, refuse_foreign_origin
from switchyard.server.http.bodies.body_decoding import decode_body, read_bounded
from switchyard.server.http.bodies.upload import read_upload
from switchyard.server.http.call import Call, read_idempotency_key, read_query
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    USER_BYTES_HEADERS,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    RawAnswer,
    encode,
    header,
    send_body,
)
from switchyard.server.http.endpoint import BodyForm, Caller, Endpoint, check_query
from switchyard.server.http.job_wait import wait_for_job
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.loops.workers import Workers
from switchyard.service.core.agents.agent_calls import AgentCaller, AttemptNeed, CallingProcess, admit_call
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.rights import Actor, Rights
from switchyard.service.upkeep.quarantine import explain_damage

NO_ACTOR = Actor("nobody", Rights())


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


class EndpointRoute:
    """An endpoint with a handler, as an ASGI handler."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        has_json = endpoint.body is not None and endpoint.body_form is not BodyForm.UPLOAD
        self._reader = JsonReader(endpoint.body) if has_json else None
        is_for_agents = endpoint.caller in (Caller.AGENT, Caller.USER_OR_AGENT)
        self._rule = rule_of(endpoint.method, endpoint.path) if is_for_agents else None

    async def __call__(self, server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        endpoint = self._endpoint
        known = server.context.snapshots.all_versions
        actor, agent = await self._authenticate(server, scope)
        query = read_query(scope)
        check_query(endpoint.query, query)
        call = Call(
            services=server.services,
            wakeups=server.wakeups,
            actor=actor,
            path=dict(scope["path_params"]),
            query=query,
            body=await self._read_body(server, scope, receive),
            token=bearer(scope),
            agent=agent,
            incarnation=read_incarnation(scope) if agent is not None else None,
            if_match=_text(header(scope, b"if-match")),
            if_none_match=_text(header(scope, b"if-none-match")),
            idempotency_key=read_idempotency_key(scope) if endpoint.has_idempotency_key else None,
        )
        if endpoint.wait is not None:
            read = partial(self._run, server, scope, call, known, endpoint.handler)
            result = await wait_for_job(server, call, receive, read, endpoint.wait, path=endpoint.path)
            answer = await server.workers.in_thread(self._encode, result)
        else:
            answer = await self._run(server, scope, call, known, self._handle)
        await send_body(send, endpoint.status, answer.body, *answer.headers)

    async def _authenticate(self, server: ServerRuntime, scope: AsgiScope) -> tuple[Actor, AgentEntry | None]:
        caller = self._endpoint.caller
        if caller is Caller.USER_OR_AGENT:
            caller = Caller.AGENT if has_agent_credential(scope) else Caller.USER
        if caller is Caller.AGENT:
            return NO_ACTOR, await server.authenticator.agent(scope)
        if caller is Caller.USER:
            return await server.authenticator.user(scope), None
        if caller is Caller.JOINER and server.settings.is_open:
            refuse_foreign_origin(scope)
        return NO_ACTOR, None

    async def _read_body(self, server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive) -> Any:
        form, bound = self._endpoint.body_form, self._endpoint.body_bound
        if form is BodyForm.UPLOAD:
            return await read_upload(server, scope, receive)
        body = await read_bounded(server.bodies, scope, receive, bound)
        if self._reader is not None:
            if not body and form is BodyForm.OPTIONAL_JSON:
                return self._reader.read(b"{}")
            return await decode_body(server.workers, scope, body, self._reader, bound)
        if body.strip() not in (b"", b"{}"):
            raise Malformed("This call takes no body.", next_step="What it can be told goes into the query.")
        return None

    async def _run(
        self,
        server: ServerRuntime,
        scope: AsgiScope,
        call: Call,
        known: tuple[int, ...],
        handler: Callable[[Call], Any] | None,
    ) -> Any:
        """Run a handler.

        Before a 403 or 404 is final, refresh the snapshots: if another server has changed them, try once more.
        """
        assert handler is not None
        in_thread = self._threads(server.workers)
        try:
            return await in_thread(handler, call)
        except (NotFound, UnknownName, Denied):
            if server.context.database.is_sqlite:  # it has one server
                raise
            await server.workers.in_thread(server.context.snapshots.refresh)
            if server.context.snapshots.all_versions == known:
                raise
        except (*UNREADABLE_ERRORS, Internal) as exc:
            if "job" not in call.path or (damage := await server.workers.in_thread(_damage, call)) is None:
                raise
            raise damage from exc
        if call.actor is not NO_ACTOR:
            call = replace(call, actor=await server.authenticator.user(scope))  # with the current grants
        return await in_thread(handler, call)

    def _threads(self, workers: Workers) -> Callable[..., Awaitable[Any]]:
        if self._endpoint.is_about_files:
            return workers.in_file_thread
        return workers.in_heavy_thread if self._endpoint.is_heavy else workers.in_thread

    def _handle(self, call: Call) -> EncodedAnswer:
        """Handle and encode on one thread: the answer may be large."""
        assert self._endpoint.handler is not None
        return self._encode(self._endpoint.handler(self._admitted(call)))

    def _admitted(self, call: Call) -> Call:
        """The call, if the table of calls lets its agent in; with the attempt that the call is for."""
        rule = self._rule
        if call.agent is None or rule is None or rule.process is not CallingProcess.HOLDER:
            return call
        job, fence = "", 0
        if rule.attempt is not AttemptNeed.NONE:
            is_in_query = call.text("job") is not None
            job = call.text("job") or "" if is_in_query else call.body.job
            fence = call.number("fence", 0) if is_in_query else call.body.fence
        caller = AgentCaller(call.agent, call.incarnation)
        return replace(call, attempt=admit_call(call.context, caller, rule, job, fence))

    def _encode(self, result: Any) -> EncodedAnswer:
        if isinstance(result, RawAnswer):
            return EncodedAnswer(result.content, ((b"content-type", result.media), *USER_BYTES_HEADERS))
        etag = ((b"etag", f'"{result.etag}"'.encode()),) if self._endpoint.has_etag else ()
        return EncodedAnswer(encode(result), (JSON, *etag))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _damage(call: Call) -> YardError | None:
    return explain_damage(call.context, call.actor, call.path["job"])
