"""The gRPC port. Today it serves the standard health service; the compatibility doors open here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from switchyard.errors import Unavailable
from switchyard.server.settings import Settings

MESSAGE_BYTES_MAX = 64 * 2**20
THREADS = 8


class GrpcPort:
    """A gRPC server on its own threads."""

    def __init__(self, settings: Settings) -> None:
        assert settings.grpc is not None
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="grpc"), options=options)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        host, port = settings.grpc
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if settings.tls_cert and settings.tls_key:
                pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
                self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                self._server.add_insecure_port(address)
        except RuntimeError as exc:
            raise Unavailable(
                f"Cannot listen on {address} for gRPC.", next_step="Is the port taken? Give --grpc another."
            ) from exc

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._health.enter_graceful_shutdown()
        self._server.stop(grace=0.5)
