"""A proxy before the S3 server of the tests: it counts who reads what, and holds or spoils signed addresses."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.processes import PATIENCE_S

HOP_HEADERS = ("connection", "content-length", "transfer-encoding", "date", "server")
SDK_AGENT = "switchyard-sdk"


class S3Request(NamedTuple):
    """One request. `is_signed_address`: the right is in the query, not in a header as in the server's own calls."""

    method: str
    key: str
    is_signed_address: bool
    is_user: bool  # of the SDK
    status: int
    size: int  # of the answer
    sent: int  # bytes of the request


class S3Proxy:
    """`hold`: the first read of each of these keys by a signed address waits until the address has expired.

    `spoils`: signed addresses arrive with another date, as from a server whose clock is wrong. `traps`: what happens
    at a moment of a request of the server itself, once: `before COPY`, `after DELETE`. A request before which one
    happened does not reach the S3 server.
    """

    def __init__(self, port: int) -> None:
        self.port = port  # of the S3 server
        self.requests: list[S3Request] = []
        self.hold: set[str] = set()
        self.spoils = False
        self.traps: dict[str, Callable[[], None]] = {}
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self.server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def reads(self, key: str) -> list[S3Request]:
        with self.lock:
            return [request for request in self.requests if request.method == "GET" and request.key == key]

    def spring(self, moment: str) -> bool:
        """Run the trap of this moment. Returns whether there was one."""
        with self.lock:
            trap = self.traps.pop(moment, None)
        if trap is not None:
            trap()
        return trap is not None

    def writes(self, *, signed: bool) -> list[S3Request]:
        """Uploads by signed addresses, or by the server itself."""
        with self.lock:
            requests = [request for request in self.requests if request.method == "PUT"]
            return [request for request in requests if request.is_signed_address is signed]


class _Handler(BaseHTTPRequestHandler):
    proxy: S3Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        is_signed, key = "X-Amz-Signature=" in parts.query, parts.path.rpartition("/")[2]
        target = self.path
        if is_signed:
            with self.proxy.lock:
                is_held = self.command == "GET" and key in self.proxy.hold
                if is_held:
                    self.proxy.hold.discard(key)
            if is_held:
                wait_for_expiry(self.path)
            if self.proxy.spoils:
                target = target.replace("X-Amz-Date=2", "X-Amz-Date=1")
        step = "COPY" if self.headers.get("x-amz-copy-source") else self.command
        if parts.query.startswith("delete"):  # several objects in one request
            step = "DELETE"
        if not is_signed and self.proxy.spring(f"before {step}"):
            self.close_connection = True
            return
        line = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=PATIENCE_S)
        try:
            line.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
            for name, text in self.headers.items():
                line.putheader(name, text)  # Host, too: it is signed
            line.endheaders(body or None)
            answer = line.getresponse()
            data = answer.read()
        finally:
            line.close()
        is_user = self.headers.get("User-Agent") == SDK_AGENT
        with self.proxy.lock:
            self.proxy.requests.append(
                S3Request(self.command, key, is_signed, is_user, answer.status, len(data), len(body))
            )
        if not is_signed:
            self.proxy.spring(f"after {step}")
        with contextlib.suppress(OSError):  # whoever asked may have been killed
            self._answer(answer, data)

    def _answer(self, answer: http.client.HTTPResponse, data: bytes) -> None:
        self.send_response_only(answer.status)
        for name, text in answer.getheaders():
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, text)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _forward  # noqa: N815


def wait_for_expiry(url: str) -> None:
    """Return when a signed address is no longer valid."""
    query = parse_qs(urlsplit(url).query)
    signed_at = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    end = signed_at + int(query["X-Amz-Expires"][0]) + 1
    while (left_s := end - time.time()) >= 0:
        time.sleep(left_s + 0.05)  # until the address has ended, by the clock of the service


@contextmanager
def s3_proxy(port: int) -> Iterator[S3Proxy]:
    """A running proxy before the S3 server at this port."""
    proxy = S3Proxy(port)
    thread = threading.Thread(target=proxy.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
