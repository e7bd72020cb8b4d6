"""Flyte's gRPC services: what we serve of AdminService, and what its clients ask before they send a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import structlog
from flyteidl.service import auth_pb2

from switchyard.errors import Internal, Unavailable, YardError
from switchyard.server.flyte.bindings import ADMIN, answer_class, request_class
from switchyard.server.flyte.calls import CALLS, Call
from switchyard.server.flyte.status import code_of, message_of
from switchyard.server.grpc_message import reader, refuse_unreadable
from switchyard.server.http.authenticate import authenticate_token, bearer_token
from switchyard.server.yard import Yard
from switchyard.service.rights import Actor

AUTHORIZATION = "authorization"
AUTHENTICATE_S = 10.0  # a look at the store, at most, for a token that is new here
log = structlog.get_logger()
Behaviour = Callable[[Any, grpc.ServicerContext], Any]


def handlers(yard: Yard) -> tuple[grpc.GenericRpcHandler, ...]:
    """For the gRPC server. A call that is not among them is answered UNIMPLEMENTED by gRPC itself."""
    admin = {name: _handler(partial(_serve, yard, name, call), name) for name, call in CALLS.items()}
    return (
        grpc.method_handlers_generic_handler(ADMIN.full_name, admin),
        grpc.method_handlers_generic_handler("flyteidl.service.AuthMetadataService", _auth_metadata(yard)),
    )


def _handler(behaviour: Behaviour, name: str) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=reader(request_class(name)),
        response_serializer=answer_class(name).SerializeToString,
    )


def _serve(yard: Yard, name: str, call: Call, request: Any, context: grpc.ServicerContext) -> Any:
    try:
        refuse_unreadable(request)
        return call.serve(yard, None if call.is_open else _actor(yard, context), request)
    except YardError as exc:
        if exc.status >= 500 and not exc.transient:
            log.error("request failed", call=name, error=repr(exc), exc_info=exc)
        error = exc
    except Exception as exc:  # the door's last resort: the client gets a status, the log the place
        log.error("defect", call=name, exc_info=exc)
        error = Internal()
    return context.abort(grpc.StatusCode[code_of(error)], message_of(error))


def _actor(yard: Yard, context: grpc.ServicerContext) -> Actor:
    """Who calls: the token in the metadata is a user's token, as in HTTP."""
    given = {key: value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION}
    assert yard.loop is not None
    asking = _admitted(yard, bearer_token(given.get(AUTHORIZATION, "")))
    try:
        return asyncio.run_coroutine_threadsafe(asking, yard.loop).result(AUTHENTICATE_S)
    except TimeoutError as exc:
        raise Unavailable("The token could not be looked up in time.") from exc


async def _admitted(yard: Yard, token: str) -> Actor:
    """On the server's loop, where users' requests are counted."""
    actor = await authenticate_token(yard, token)
    yard.limiter.request(actor)
    return actor


def _auth_metadata(yard: Yard) -> dict[str, grpc.RpcMethodHandler]:
    """flytekit asks both before its first call, whatever its way of getting a token.

    There is no OAuth2 server here, and the answer names none: tokens come from `yard token create`, by flytekit's
    ExternalCommand.
    """

    def public_client(_request: Any, _context: grpc.ServicerContext) -> Any:
        return auth_pb2.PublicClientAuthConfigResponse(
            authorization_metadata_key=AUTHORIZATION, service_http_endpoint=yard.settings.url
        )

    def oauth2(_request: Any, _context: grpc.ServicerContext) -> Any:
        return auth_pb2.OAuth2MetadataResponse(issuer=yard.settings.url)

    return {
        "GetPublicClientConfig": grpc.unary_unary_rpc_method_handler(
            public_client,
            request_deserializer=auth_pb2.PublicClientAuthConfigRequest.FromString,
            response_serializer=auth_pb2.PublicClientAuthConfigResponse.SerializeToString,
        ),
        "GetOAuth2Metadata": grpc.unary_unary_rpc_method_handler(
            oauth2,
            request_deserializer=auth_pb2.OAuth2MetadataRequest.FromString,
            response_serializer=auth_pb2.OAuth2MetadataResponse.SerializeToString,
        ),
    }
