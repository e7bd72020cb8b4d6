"""Flyte's gRPC services: what we serve of AdminService, and what its clients ask before they send a token."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from flyteidl.service import auth_pb2

from switchyard.errors import Unavailable
from switchyard.server.flyte.bindings import ADMIN, answer_class, request_class
from switchyard.server.flyte.calls import CALLS, FlyteCall
from switchyard.server.flyte.grpc_status import code_of
from switchyard.server.grpc_intake import CallContext, GrpcMethod, MessageIntake
from switchyard.server.grpc_message import message_reader
from switchyard.server.http.authenticate import authenticate_token, bearer_token
from switchyard.server.runtime import ServerRuntime
from switchyard.service.rights import Actor

AUTHORIZATION = "authorization"
AUTHENTICATE_S = 10.0  # a look at the store, at most, for a token that is new here


def handlers(
    yard: ServerRuntime, intake: MessageIntake, threads: ThreadPoolExecutor
) -> tuple[grpc.GenericRpcHandler, ...]:
    """For the gRPC server. A call that is not among them is answered UNIMPLEMENTED by gRPC itself."""
    admin = {name: intake.handler(_admin_call(yard, threads, name, call)) for name, call in CALLS.items()}
    return (
        grpc.method_handlers_generic_handler(ADMIN.full_name, admin),
        grpc.method_handlers_generic_handler("flyteidl.service.AuthMetadataService", _auth_metadata(yard, intake)),
    )


def _admin_call(yard: ServerRuntime, threads: ThreadPoolExecutor, name: str, call: FlyteCall) -> GrpcMethod:
    async def serve(request: Any, actor: Actor | None) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads, call.serve, yard, actor, request)

    return GrpcMethod(
        name,
        serve,
        read=message_reader(request_class(name)),
        write=answer_class(name).SerializeToString,
        code=code_of,
        admit=None if call.is_open else partial(_actor, yard),
    )


async def _actor(yard: ServerRuntime, context: CallContext) -> Actor:
    """Who calls: the token in the metadata is a user's token, as in HTTP."""
    given = {key: value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION}
    assert yard.loop is not None
    asking = _admitted(yard, bearer_token(str(given.get(AUTHORIZATION, ""))))
    try:
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, yard.loop))
        return await asyncio.wait_for(future, AUTHENTICATE_S)
    except TimeoutError as exc:
        raise Unavailable("The token could not be looked up in time.") from exc


async def _admitted(yard: ServerRuntime, token: str) -> Actor:
    """On the server's loop, where users' requests are counted."""
    actor = await authenticate_token(yard, token)
    yard.limiter.request(actor)
    return actor


def _auth_metadata(yard: ServerRuntime, intake: MessageIntake) -> dict[str, grpc.RpcMethodHandler]:
    """flytekit asks both before its first call, whatever its way of getting a token.

    There is no OAuth2 server here, and the answer names none: tokens come from `yard token create`, by flytekit's
    ExternalCommand.
    """

    async def public_client(_request: Any, _admitted: Any) -> Any:
        return auth_pb2.PublicClientAuthConfigResponse(
            authorization_metadata_key=AUTHORIZATION, service_http_endpoint=yard.settings.url
        )

    async def oauth2(_request: Any, _admitted: Any) -> Any:
        return auth_pb2.OAuth2MetadataResponse(issuer=yard.settings.url)

    calls = (
        ("GetPublicClientConfig", public_client, auth_pb2.PublicClientAuthConfigRequest),
        ("GetOAuth2Metadata", oauth2, auth_pb2.OAuth2MetadataRequest),
    )
    return {
        name: intake.handler(
            GrpcMethod(
                name,
                serve,
                read=message_reader(kind),
                write=lambda found: bytes(found.SerializeToString()),
                code=code_of,
            )
        )
        for name, serve, kind in calls
    }
