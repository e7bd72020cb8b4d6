"""A small real HTTP server that answers by script and remembers what it was asked. It is a peer, not a mock."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any
    connection: int


@dataclass(frozen=True)
class Say:
    """Answer with this. `cut` promises more bytes than it sends; `text` is sent as it is."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    cut: bool = False
    close: bool = False


class HangUp:
    """Read the request, then close without a word."""


Action = Say | HangUp | Callable[[Asked], "Say | HangUp"]


def problem(status: int, code: str, detail: str, next_step: str = "", **headers: str) -> Say:
    body = {"type": f"urn:x:{code}", "title": code, "status": status, "code": code, "detail": detail}
    return Say(
        {**body, "next_step": next_step}, status, {key.replace("_", "-"): value for key, value in headers.items()}
    )


class Peer:
    """`on("GET", "/v1/jobs", Say(…), Say(…))`: the actions in order, the last one for ever. `*` stands for one part."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._scripts: list[tuple[str, re.Pattern[str], list[Action]]] = []
        self._lock = threading.Lock()
        self._connections = itertools.count()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.number = next(peer._connections)

            def _serve(self) -> None:
                peer._serve(self, self.number)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 — http.server's names

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """A client that hangs up first is part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def on(self, method: str, path: str, *actions: Action) -> None:
        """A later script for the same route replaces the earlier one."""
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]+") + r"\Z")
        with self._lock:
            self._scripts.insert(0, (method, pattern, list(actions)))

    def asked_for(self, method: str, path: str) -> list[Asked]:
        return [request for request in self.asked if (request.method, request.path) == (method, path)]

    def _serve(self, handler: BaseHTTPRequestHandler, connection: int) -> None:
        parts = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        asked = Asked(
            handler.command,
            parts.path,
            parse_qs(parts.query),
            {key.lower(): value for key, value in handler.headers.items()},
            json.loads(raw) if raw else None,
            connection,
        )
        with self._lock:
            self.asked.append(asked)
            action = self._next(asked)
        _perform(handler, action(asked) if callable(action) else action)

    def _next(self, asked: Asked) -> Action:
        for method, pattern, actions in self._scripts:
            if method == asked.method and pattern.match(asked.path):
                return actions.pop(0) if len(actions) > 1 else actions[0]
        return problem(404, "not-found", f"The script has nothing for {asked.method} {asked.path}.")


def _perform(handler: BaseHTTPRequestHandler, action: Say | HangUp) -> None:
    if isinstance(action, HangUp):
        handler.close_connection = True
        return
    body = json.dumps(action.body).encode() if action.text is None else action.text.encode()
    kind = "text/html" if action.text is not None else "application/json"
    handler.send_response(action.status)
    for key, value in {"Content-Type": kind, **action.headers}.items():
        handler.send_header(key, value)
    handler.send_header("Content-Length", str(len(body) + (100 if action.cut else 0)))
    if action.close:
        handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = action.cut or action.close or handler.close_connection


def a_job(**changes: Any) -> dict[str, Any]:
    """A job as the API gives it; everything but what matters has a default."""
    return {
        "id": "01JCQ0V7K3E8R5T9W1X2Y4Z6AB",
        "name": "hello",
        "owner": "alice",
        "project": "default",
        "domain": "development",
        "state": "RUNNING",
        "cluster": "alpha",
        "attempt": 1,
        "fence": 1,
        "created_us": 1_700_000_000_000_000,
        **changes,
    }
