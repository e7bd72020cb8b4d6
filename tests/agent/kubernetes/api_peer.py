"""A server on loopback that answers as a test tells it: for answers that a real API server gives only on bad days."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.connection import AccessSettings, ClusterConnection

Answer = Callable[["PeerHandler"], None]


class PeerHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: ClassVar[list[Answer]]

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.requests.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))  # type: ignore[attr-defined]
        answers = self.server.answers  # type: ignore[attr-defined]
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def end_chunks(self) -> None:
        self.chunk(b"")

    def cut(self) -> None:
        self.close_connection = True

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


class ApiPeer:
    """`answers` are used in turn; the last one stays."""

    def __init__(self, folder: Path, *answers: Answer) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), PeerHandler)
        self._server.daemon_threads = True
        self._server.answers = list(answers)  # type: ignore[attr-defined]
        self._server.requests = self.requests = []  # type: ignore[attr-defined]
        self.token = folder / "token"
        self.token.write_text("first")
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    requests: list[tuple[str, str, dict[str, str], bytes]]

    def api(self, *, timeout_s: float = 30.0) -> KubernetesApi:
        settings = AccessSettings(endpoint=self.url, token_path=str(self.token))
        return KubernetesApi(ClusterConnection(settings), timeout_s=timeout_s)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def says(status: int, **fields: Any) -> Answer:
    return lambda handler: handler.reply(status, json.dumps(fields).encode())


def streams(*rows: object, is_cut: bool = False, then: Callable[[], object] = lambda: None) -> Answer:
    """Rows of a watch; `is_cut`: the connection ends without the end of the answer."""

    def answer(handler: PeerHandler) -> None:
        handler.begin_chunks()
        for row in rows:
            handler.chunk(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n")
        then()
        if is_cut:
            handler.cut()
        else:
            handler.end_chunks()

    return answer
