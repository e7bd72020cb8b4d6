"""An HTTP proxy before a real API server that loses requests or answers on demand. Agents speak plain HTTP to it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from tests.kube_cluster import KubernetesCluster

PIECE_BYTES = 65536


@dataclass
class ApiFault:
    """What happens to the next `times` requests of this method whose path contains `part`.

    Without `is_sent` the API server never sees the request; with it, the answer is lost.
    """

    method: str
    part: str
    times: int = 1
    is_sent: bool = True
    then: Callable[[], object] = lambda: None  # called when the answer is lost

    def applies(self, head: bytes) -> bool:
        method, _, rest = head.decode("latin-1").partition(" ")
        return self.times > 0 and method == self.method and self.part in rest.partition(" ")[0]


class FaultyApi:
    """Each connection of the agent has one to the API server, so open watches are passed on as they come."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        parts = urlsplit(cluster.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._peer = (parts.hostname, parts.port)
        self._tls = ssl.create_default_context(cafile=cluster.ca_file)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.fault: ApiFault | None = None
        self.requests: list[str] = []  # method and path of each
        self.token = folder / "token"
        self.token.write_text(cluster.token)
        self.section = {
            "kubeconfig": None,
            "endpoint": f"http://127.0.0.1:{self._listener.getsockname()[1]}",
            "token_path": str(self.token),
        }
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            reader = client.makefile("rb")
            server: socket.socket | None = None
            while request := _read_request(reader):
                self.requests.append(request.partition(b" HTTP/")[0].decode("latin-1"))
                fault = self.fault
                if fault is not None and fault.applies(request):
                    fault.times -= 1
                    self._lose(request, fault)
                    return
                if server is None:
                    server = self._connect()
                    threading.Thread(target=_relay, args=(server, client), daemon=True).start()
                server.sendall(request)

    def _connect(self) -> socket.socket:
        return self._tls.wrap_socket(socket.create_connection(self._peer), server_hostname=self._peer[0])

    def _lose(self, request: bytes, fault: ApiFault) -> None:
        if not fault.is_sent:
            return
        with self._connect() as server:
            server.sendall(request)
            server.recv(PIECE_BYTES)  # the API server has carried it out
        fault.then()


def _relay(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(PIECE_BYTES):
            client.sendall(data)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _read_request(reader: BinaryIO) -> bytes:
    """One request, head and body; empty: the agent has closed the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        row = reader.readline(PIECE_BYTES)
        if not row:
            return b""
        head += row
    lengths = [row.partition(b":")[2] for row in head.split(b"\r\n") if row.lower().startswith(b"content-length:")]
    return head + (reader.read(int(lengths[0])) if lengths else b"")
