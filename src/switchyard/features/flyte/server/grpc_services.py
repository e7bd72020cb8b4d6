"""Flyte's gRPC services: AdminService and DataProxyService, and what clients ask before they send a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from flyteidl.service import auth_pb2

from switchyard.errors import Unavailable
from switchyard.features.flyte.server.bindings import SERVICES, answer_class, request_class
from switchyard.features.flyte.server.calls import CALLS, FlyteCall
from switchyard.features.flyte.server.grpc_status import code_of
from switchyard.features.flyte.server.pages.console import AUTHORIZE_PATH, CLIENT_ID, SIGN_IN_CALLBACK
from switchyard.features.flyte.server.workflows_section import clients_url
from switchyard.server.grpc.grpc_intake import CallContext, GrpcMethod, MessageIntake
from switchyard.server.grpc.grpc_message import message_reader
from switchyard.server.grpc.limiter import current_caller
from switchyard.server.http.authenticate import bearer_token
from switchyard.server.loops.loop_calls import run_on_thread
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.rights import Actor

AUTHORIZATION = "authorization"
AUTHENTICATE_S = 10.0  # includes a refresh of the snapshots for an unknown token


def handlers(
    server: ServerRuntime, intake: MessageIntake, threads: ThreadPoolExecutor
) -> tuple[grpc.GenericRpcHandler, ...]:
    """The handlers for the gRPC server. gRPC itself answers other calls with UNIMPLEMENTED."""
    calls = {name: intake.handler(_flyte_call(server, threads, name, call)) for name, call in CALLS.items()}
    return (
        *(
            grpc.method_handlers_generic_handler(
                service.full_name, {name: calls[name] for name in calls if name in service.methods_by_name}
            )
            for service in SERVICES
        ),
        grpc.method_handlers_generic_handler("flyteidl.service.AuthMetadataService", _auth_metadata(server, intake)),
    )


def _flyte_call(server: ServerRuntime, threads: ThreadPoolExecutor, name: str, call: FlyteCall) -> GrpcMethod:
    served = call.bound(clients_url(server.settings))

    async def serve(request: Any, actor: Actor | None) -> Any:
        if actor is not None and call.is_heavy(request):
            return await _in_heavy_thread(server, actor, partial(served, server.context, actor, request))
        work = partial(served, server.context, actor, request)
        return await run_on_thread(asyncio.get_running_loop(), threads, work)

    return GrpcMethod(
        name,
        serve,
        read=message_reader(request_class(name)),
        write=answer_class(name).SerializeToString,
        code=code_of,
        admit=None if call.is_open else partial(_actor, server),
    )


async def _in_heavy_thread(server: ServerRuntime, actor: Actor, work: Callable[[], Any]) -> Any:
    """Run long work on the server's threads for it, where users take turns. They belong to the server's loop."""

    async def run() -> Any:
        current_caller.set(actor.name)
        return await server.workers.in_heavy_thread(work)

    assert server.wakeups.loop is not None
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), server.wakeups.loop))


async def _actor(server: ServerRuntime, context: CallContext) -> Actor:
    """Find the user by the token in the metadata, as in HTTP."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION}
    assert server.wakeups.loop is not None
    asking = _admitted(server, bearer_token(str(metadata.get(AUTHORIZATION, ""))))
    try:
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, server.wakeups.loop))
        return await asyncio.wait_for(future, AUTHENTICATE_S)
    except TimeoutError as exc:
        raise Unavailable("The token could not be looked up in time.") from exc


async def _admitted(server: ServerRuntime, token: str) -> Actor:
    """On the server's loop, where users' requests are counted."""
    actor = await server.authenticator.token(token)
    server.limiter.count_request(actor)
    return actor


def _auth_metadata(server: ServerRuntime, intake: MessageIntake) -> dict[str, grpc.RpcMethodHandler]:
    """flytekit makes both calls before its first other call, however it gets its token.

    There is no OAuth2 server here: tokens come from `yard token create`, by the clients' ExternalCommand. A client that
    wants to sign in by a browser (Pkce) is sent to a page of ours, which sends it back with that advice.
    """
    url = clients_url(server.settings) or server.settings.url

    async def public_client(_request: Any, _admitted: Any) -> Any:
        return auth_pb2.PublicClientAuthConfigResponse(
            client_id=CLIENT_ID,
            redirect_uri=SIGN_IN_CALLBACK,
            authorization_metadata_key=AUTHORIZATION,
            service_http_endpoint=url,
        )

    async def oauth2(_request: Any, _admitted: Any) -> Any:
        return auth_pb2.OAuth2MetadataResponse(issuer=url, authorization_endpoint=f"{url}{AUTHORIZE_PATH}")

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
                write=lambda answer: bytes(answer.SerializeToString()),
                code=code_of,
            )
        )
        for name, serve, kind in calls
    }
