"""Flyte's REST API on the HTTP port, as grpc-gateway serves it: JSON in either spelling, or protobuf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from switchyard.errors import YardError
from switchyard.features.flyte.server.grpc_status import (
    CODES,
    FlyteNotFound,
    FlyteNotServed,
    code_of,
    http_of,
)
from switchyard.features.flyte.server.workflows_section import clients_url
from switchyard.server.grpc.grpc_status import message_of
from switchyard.server.http.bodies.body_bounds import ENTITY_BODY, INLINE_BYTES, LAYOUT_BODY
from switchyard.server.http.bodies.body_decoding import read_bounded, refuse_large
from switchyard.server.http.call import read_query
from switchyard.server.http.connections.asgi_messages import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    answer_errors,
    header,
    retry_after,
    send_body,
)
from switchyard.server.loops.runtime import ServerRuntime

if TYPE_CHECKING:
    from switchyard.features.flyte.server.bindings import Binding
    from switchyard.features.flyte.server.calls import FlyteCall

PROTO_MEDIA = "application/octet-stream"
JSON_MEDIA = "application/json"
LARGE_ANSWER_BYTES = 128 * 1024  # in protobuf; as JSON some milliseconds


class FlyteRestApp:
    """Every address under `/api/v1/`. Flyte's messages are imported at the first call: most servers never get one."""

    def __init__(self, server: ServerRuntime) -> None:
        self._server = server
        self._served: ServedCalls | None = None

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        async def refuse(send: AsgiSend, error: YardError) -> None:
            await send_error(send, error, is_proto=_wanted(scope) == PROTO_MEDIA)

        await answer_errors(scope, send, lambda: self._serve(scope, receive, send), refuse)

    async def _serve(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        server = self._server
        if self._served is None:
            self._served = await server.workers.in_thread(_load)
        served = self._served
        binding, path = _find(served.bindings, scope)
        call = served.calls.get(binding.call)
        if call is None:
            raise FlyteNotServed(
                f"{binding.call} is not served here.",
                next_step="Projects, domains, attributes, tasks, workflows, launch plans and executions are.",
            )
        actor = None if call.is_open else await server.authenticator.user(scope)
        body = await read_bounded(server.bodies, scope, receive, ENTITY_BODY if call.is_entity else LAYOUT_BODY)
        query, wanted = read_query(scope), _wanted(scope)

        def work() -> bytes:
            from switchyard.features.flyte.server.bindings import read_request

            is_proto = _media(scope, b"content-type") == PROTO_MEDIA
            if call.is_entity and not is_proto:
                refuse_large(body, ENTITY_BODY)
            request = read_request(binding, path=path, query=query, body=body, is_proto=is_proto)
            answer = call.bound(clients_url(server.settings))(server.context, actor, request)
            if wanted == PROTO_MEDIA:
                return bytes(answer.SerializeToString())
            return _encode(answer, is_snake=wanted == JSON_MEDIA)

        is_heavy = call.is_entity and len(body) > INLINE_BYTES
        answer = await (server.workers.in_heavy_thread(work) if is_heavy else server.workers.in_thread(work))
        await send_body(send, 200, answer, _content_type(is_proto=wanted == PROTO_MEDIA))


@dataclass(frozen=True)
class ServedCalls:
    """All addresses of Flyte's service, and the calls that we serve."""

    bindings: tuple[Binding, ...]
    calls: Mapping[str, FlyteCall]


def _load() -> ServedCalls:
    from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed, not_installed_error

    if not is_flyteidl_installed():
        raise not_installed_error()
    from switchyard.features.flyte.server.bindings import bindings
    from switchyard.features.flyte.server.calls import CALLS

    return ServedCalls(bindings(), CALLS)


def _encode(answer: Any, *, is_snake: bool) -> bytes:
    """An answer in JSON. A large one is written in pieces: one call for all of it would stop the event loop."""
    from switchyard.features.flyte.server.bindings import as_dict

    fields = as_dict(answer, is_snake=is_snake)
    if answer.ByteSize() <= LARGE_ANSWER_BYTES:
        return json.dumps(fields, ensure_ascii=False).encode()
    return "".join(json.JSONEncoder(ensure_ascii=False).iterencode(fields)).encode()


def _find(bindings: tuple[Binding, ...], scope: AsgiScope) -> tuple[Binding, dict[str, str]]:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    # Unquote each part by itself, so that an escaped slash stays within its part.
    parts = [unquote(part) for part in raw.decode("latin-1").split("/")]
    matching = [(binding, fields) for binding in bindings if (fields := binding.fields(parts)) is not None]
    for binding, fields in matching:
        if binding.verb == scope["method"]:
            return binding, fields
    raise FlyteNotServed("Method Not Allowed") if matching else FlyteNotFound("Not Found")


def _wanted(scope: AsgiScope) -> str:
    """The media type of the answer: the accepted one, else that of the request."""
    accepted = _media(scope, b"accept")
    return accepted if accepted in (JSON_MEDIA, PROTO_MEDIA) else _media(scope, b"content-type")


def _media(scope: AsgiScope, name: bytes) -> str:
    value = (header(scope, name) or b"").decode("latin-1")
    return value.partition(";")[0].strip().lower()


def _content_type(*, is_proto: bool) -> tuple[bytes, bytes]:
    return (b"content-type", PROTO_MEDIA.encode()) if is_proto else JSON


async def send_error(send: AsgiSend, error: YardError, *, is_proto: bool = False) -> None:
    number, message = CODES[code_of(error)].number, message_of(error)
    extra = retry_after(error)
    if error.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    if is_proto:
        from google.rpc import status_pb2

        body = status_pb2.Status(code=number, message=message).SerializeToString()
    else:
        body = json.dumps({"code": number, "message": message, "details": []}, ensure_ascii=False).encode()
    await send_body(send, http_of(error), body, _content_type(is_proto=is_proto), *extra)
