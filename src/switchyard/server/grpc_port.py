"""The gRPC port: the standard health service, Flyte's, and Rainbow's. Imported only where there is such a port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
import grpc.aio
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from switchyard.errors import Unavailable
from switchyard.server.flyte.absent import is_installed, refusal
from switchyard.server.flyte.status import code_of, message_of
from switchyard.server.yard import Yard

MESSAGE_BYTES_MAX = 64 * 2**20
THREADS = 8
CALLS_MAX = 1000  # running and waiting for a thread; above: RESOURCE_EXHAUSTED, and clients try again
PING_MS_MIN = (
    10_000  # Flyte's clients ping every 30 s, with or without a call; gRPC's own bound, 5 min, would cut them off
)
OPEN_S = 10.0
STOP_S = 0.5
T = TypeVar("T")
OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS_MIN),
]


class GrpcPort:
    """A gRPC server on a loop and a thread of its own: hundreds of calls may wait for one commit together.

    Calls that are plain functions, Flyte's, run on a few further threads.
    """

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self._thread.start()
        self._server = self._on_loop(self._opened())

    async def _opened(self) -> grpc.aio.Server:
        settings = self._yard.settings
        assert settings.grpc is not None
        self._yard.measure_pauses("grpc", self._loop)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grpc-call")
        server = grpc.aio.server(threads, options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((*_flyte(self._yard), *_rainbow(self._yard)))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
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
        self._on_loop(self._server.start())

    def stop(self) -> None:
        self._on_loop(self._health.enter_graceful_shutdown())
        self._on_loop(self._server.stop(STOP_S))
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(OPEN_S)


def _flyte(yard: Yard) -> tuple[grpc.GenericRpcHandler, ...]:
    if not is_installed():
        return (_Absent(),)
    from switchyard.server.flyte.rpc import handlers

    return handlers(yard)


def _rainbow(yard: Yard) -> tuple[grpc.GenericRpcHandler, ...]:
    if yard.settings.config.rainbow is None:
        return ()
    from switchyard.server.rainbow.door import handlers

    return handlers(yard)


class _Absent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses every call of Flyte's services, with the reason."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.unary_unary_rpc_method_handler(_refuse) if details.method.startswith("/flyteidl.") else None


def _refuse(_request: bytes, context: grpc.ServicerContext) -> None:
    error = refusal()
    context.abort(grpc.StatusCode[code_of(error)], message_of(error))
