"""An HTTP proxy before a real API server that loses requests or answers on demand. Agents speak plain HTTP to it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
    hang: threading.Event | None = None  # the request waits for it before it is lost

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
        self._clients: set[socket.socket] = set()
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

    def cut(self) -> None:
        """End all connections: the agent's watches begin again."""
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

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
        """One thread for both directions: an SSL object that two threads use at once loses answers."""
        self._clients.add(client)
        with suppress(OSError), contextlib.closing(_Passage(client, self._clients.discard)) as passage:
            while passage.wait():
                for request in passage.requests():
                    self.requests.append(request.partition(b" HTTP/")[0].decode("latin-1"))
                    fault = self.fault
                    if fault is not None and fault.applies(request):
                        fault.times -= 1
                        self._lose(request, fault)
                        return
                    if passage.server is None:
                        passage.server = self._connect()
                    passage.send(request)
                if not passage.pass_answers():
                    return

    def _connect(self) -> ssl.SSLSocket:
        return self._tls.wrap_socket(socket.create_connection(self._peer), server_hostname=self._peer[0])

    def _lose(self, request: bytes, fault: ApiFault) -> None:
        if fault.hang is not None:
            fault.hang.wait()
        if not fault.is_sent:
            return
        with self._connect() as server:
            server.sendall(request)
            server.recv(PIECE_BYTES)  # the API server has carried it out
        fault.then()


class _Passage:
    """A connection of the agent and the one to the API server that belongs to it. Used by one thread."""

    def __init__(self, client: socket.socket, on_close: Callable[[socket.socket], None]) -> None:
        self._client, self._on_close = client, on_close
        self._received = b""
        self.server: ssl.SSLSocket | None = None

    def close(self) -> None:
        self._on_close(self._client)
        self._client.close()
        if self.server is not None:
            self.server.close()

    def wait(self) -> bool:
        """Wait until one side has sent something. False: the agent has closed the connection."""
        sockets = [self._client, *([self.server] if self.server is not None else [])]
        readable, _, _ = select.select(sockets, [], [])
        if self._client not in readable:
            return True
        data = self._client.recv(PIECE_BYTES)
        self._received += data
        return bool(data)

    def requests(self) -> Iterator[bytes]:
        """Whole requests that came, each with its body."""
        while (length := _request_length(self._received)) is not None:
            request, self._received = self._received[:length], self._received[length:]
            yield request

    def send(self, request: bytes) -> None:
        assert self.server is not None
        self.server.setblocking(True)
        self.server.sendall(request)

    def pass_answers(self) -> bool:
        """Pass on what the API server has sent. False: it has closed the connection."""
        if self.server is None:
            return True
        self.server.setblocking(False)  # what came may be a message of TLS without a byte for the agent
        with suppress(ssl.SSLWantReadError):
            while data := self.server.recv(PIECE_BYTES):
                self._client.sendall(data)
            return False
        return True


def _request_length(received: bytes) -> int | None:
    """The length of the first request, head and body; None: it is not complete."""
    head, end, body = received.partition(b"\r\n\r\n")
    rows = [row.partition(b":") for row in head.split(b"\r\n")]
    length = sum(int(value) for name, _, value in rows if name.lower() == b"content-length")
    return len(head) + len(end) + length if end and len(body) >= length else None
