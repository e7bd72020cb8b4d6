"""The gRPC port: the standard health service, and those of features. Imported only where there is such a port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
import grpc.aio
import uvloop
from grpc_health.v1 import health, health_pb2

from switchyard.errors import Unavailable, YardError
from switchyard.server.config.connections_section import ConnectionBounds
from switchyard.server.feature import server_features
from switchyard.server.grpc.grpc_intake import (
    CALLS_MAX,
    GRAPH_MESSAGE_BYTES_MAX,
    CallContext,
    MessageIntake,
    peer_address,
)
from switchyard.server.grpc.grpc_message import message_reader, refuse_undecodable
from switchyard.server.grpc.grpc_status import message_of
from switchyard.server.loops.runtime import ServerRuntime

SEND_BYTES_MAX = 64 * 2**20
THREADS = 8
CONNECTION_CALLS_MAX = 256  # calls on one connection; the client queues further ones
NAME_BYTES_MAX = 4096  # of a health check
WATCHES_MAX = 100  # calls of the health service that wait for a change
# Flyte's clients ping every 30 s, with or without a call; gRPC's own bound, 5 min, would cut them off
PING_MS_MIN = 10_000
WINDOW_BYTES = 64 * 1024  # how much of a message a client may send before it is read
OPEN_S = 120.0  # the first import of a feature's messages takes long on a busy machine
STOP_S = 0.5  # for the calls that are in it
CLOSE_S = 10.0
T = TypeVar("T")


def grpc_options(bounds: ConnectionBounds) -> list[tuple[str, int]]:
    """gRPC's own settings. Connections that never speak HTTP/2 or make no calls are closed."""
    return [
        ("grpc.max_receive_message_length", GRAPH_MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", SEND_BYTES_MAX),
        ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
        ("grpc.max_allowed_incoming_connections", bounds.grpc_max),
        ("grpc.server_handshake_timeout_ms", bounds.head_s * 1000),
        ("grpc.max_connection_idle_ms", bounds.idle_s * 1000),
        ("grpc.http2.bdp_probe", 0),  # it would widen the window
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MS_MIN),
    ]


class GrpcPort:
    """A gRPC server on a loop and a thread of its own: hundreds of calls may wait for one commit together.

    Calls that are plain functions run on a few further threads.
    """

    def __init__(self, server: ServerRuntime) -> None:
        self._server = server
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self._thread.start()
        self._grpc = self._open(self._opened())

    async def _opened(self) -> grpc.aio.Server:
        settings = self._server.settings
        assert settings.grpc is not None
        self._server.pauses.measure("grpc", self._loop)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grpc-call")
        server = grpc.aio.server(options=grpc_options(settings.connections), maximum_concurrent_rpcs=CALLS_MAX)
        intake = MessageIntake()
        self._health = health.aio.HealthServicer()
        server.add_generic_rpc_handlers(
            (
                *(
                    handler
                    for feature in server_features()
                    for handler in feature.grpc_handlers(self._server, intake, threads)
                ),
                _health(self._health, intake),
            )
        )
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        host, port = settings.grpc
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if settings.tls_cert and settings.tls_key:
                pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
                ca = settings.tls_client_ca.read_bytes() if settings.tls_client_ca else None
                credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
                server.add_secure_port(address, credentials)
            else:
                server.add_insecure_port(address)
        except RuntimeError as exc:
            raise Unavailable(
                f"Cannot listen on {address} for gRPC.", next_step="Is the port taken? Give --grpc another."
            ) from exc
        return server

    def start(self) -> None:
        self._open(self._grpc.start())

    def stop(self) -> None:
        with contextlib.suppress(TimeoutError):  # the process ends, and with it the port
            self._on_loop(self._health.enter_graceful_shutdown(), CLOSE_S)
            self._on_loop(self._grpc.stop(STOP_S), CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _open(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._on_loop(coroutine, OPEN_S)
        except TimeoutError as exc:
            raise Unavailable(
                f"The gRPC port did not open within {OPEN_S:g} s: this machine is too busy.",
                next_step="Start the server again when the machine has time for it.",
            ) from exc

    def _on_loop(self, coroutine: Coroutine[Any, Any, T], within_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(within_s)


def _health(servicer: health.aio.HealthServicer, intake: MessageIntake) -> grpc.GenericRpcHandler:
    """The standard health service. Its messages have one name each, and need no credential."""
    watches = 0

    async def request_of(context: CallContext) -> Any:
        try:
            body = await intake.message(context, peer_address(context.peer()), NAME_BYTES_MAX)
            request = message_reader(health_pb2.HealthCheckRequest)(body)
            refuse_undecodable(request)
        except YardError as exc:
            await context.abort(grpc.StatusCode[exc.grpc], message_of(exc))
        return request

    async def check(_messages: Any, context: CallContext) -> Any:
        return await servicer.Check(await request_of(context), context)

    async def watch(_messages: Any, context: CallContext) -> None:
        nonlocal watches
        request = await request_of(context)
        if watches >= WATCHES_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHES_MAX} watch already.")
        watches += 1
        try:
            await servicer.Watch(request, context)
        finally:
            watches -= 1

    write = health_pb2.HealthCheckResponse.SerializeToString
    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health",
        {
            "Check": grpc.stream_unary_rpc_method_handler(check, response_serializer=write),
            "Watch": grpc.stream_stream_rpc_method_handler(watch, response_serializer=write),
        },
    )
