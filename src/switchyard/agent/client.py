"""One connection to the control plane over http.client: several servers in turn, a bound on every wait and size."""

from __future__ import annotations

import contextlib
import http.client
import logging
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from switchyard.agent.credential import AgentCredentials
from switchyard.agent.log import line
from switchyard.connection import enable_keepalive
from switchyard.errors import ERRORS_BY_CODE, BadRequest, Malformed, Unauthenticated, Unavailable, YardError
from switchyard.http_head import WholeHeadResponse
from switchyard.model.api import Problem

CONNECT_S = 5.0  # a server that does not take a connection in this time is down for us
ANSWER_SLACK_S = 15.0  # over what the server was asked to wait: its own work and the way back
ANSWER_BYTES_MAX = 256 * 2**20  # 64 leases of the largest job each would be 512 MiB; nobody has that
RETRY_AFTER_S_MAX = 60.0  # a server may ask for patience, not for silence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is: the parts of its URL."""

    url: str
    is_tls: bool
    host: str
    port: int
    path: str


def parse_server_url(url: str) -> ServerAddress:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as exc:
        raise Malformed(f"{url!r} is not a server's URL: {exc}.") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Malformed(f"{url!r} is not a server's URL.", next_step="Write it like http://127.0.0.1:8080.")
    is_tls = parts.scheme == "https"
    return ServerAddress(url, is_tls, parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"))


class ServerUnreachable(Unavailable):
    """No server could be reached, or the answer did not arrive whole."""

    default_next = "Check the server's address and that it runs (`curl URL/healthz`)."


class Connection:
    """Keep-alive to one server at a time; used by one thread, aborted from any."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        *,
        ca_file: str | None = None,
        bearer: str | None = None,
        keys: AgentCredentials | None = None,
    ) -> None:
        self._servers = list(servers)
        self._at = 0
        self._tls = ssl.create_default_context(cafile=ca_file) if any(s.is_tls for s in servers) else None
        self._bearer = bearer
        self._keys = keys
        self._http: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()  # over _http, which abort() takes away from another thread
        self._is_aborted = False
        self._is_shut = False
        self.retry_after_s: float | None = None

    @property
    def server(self) -> ServerAddress:
        return self._servers[self._at]

    def post(self, path: str, body: bytes, *, wait_s: float = 0.0, timeout_s: float = ANSWER_SLACK_S) -> bytes:
        """The answer's body, whole. Anything else is a YardError; `retry_after_s` says if the server asked to wait."""
        return self._send("POST", path, body, wait_s=wait_s, timeout_s=timeout_s)

    def get(self, path: str, *, timeout_s: float = ANSWER_SLACK_S) -> bytes:
        return self._send("GET", path, None, wait_s=0.0, timeout_s=timeout_s)

    def _send(self, method: str, path: str, body: bytes | None, *, wait_s: float, timeout_s: float) -> bytes:
        self.retry_after_s = None
        bearer = self._keys.bearer if self._keys else self._bearer
        try:
            connection = self._connected(min(timeout_s, CONNECT_S))
            assert connection.sock is not None
            connection.sock.settimeout(wait_s + timeout_s)
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            if bearer:
                headers["Authorization"] = f"Bearer {bearer}"
            connection.request(method, self.server.path + path, body, headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX + 1)
            if len(data) <= ANSWER_BYTES_MAX and not _is_whole(answer):
                raise http.client.IncompleteRead(data)
        except (OSError, http.client.HTTPException) as exc:
            at = self.server.url
            self.close()
            if not self._is_aborted:
                self.go_on()
            raise ServerUnreachable(f"{at} did not answer: {_why(exc)}.") from exc
        if len(data) > ANSWER_BYTES_MAX:
            self.close()
            raise ServerUnreachable(f"{self.server.url} answered with over {ANSWER_BYTES_MAX} bytes.")
        if answer.will_close:
            self.close()
        if 200 <= answer.status < 300:
            if self._keys and bearer:
                self._keys.accepted(bearer)
            return data
        self.retry_after_s = _seconds(answer.getheader("Retry-After"))
        error = _error(answer, data, self.server.url)
        if isinstance(error, Unauthenticated) and self._keys and bearer and self._keys.refused(bearer):
            raise ServerUnreachable(
                f"{self.server.url} does not take this credential; another one is tried."
            ) from error
        raise error

    def abort(self, *, for_good: bool = False) -> None:
        """End a waiting post from another thread; its answer counts as lost. `for_good`: every later one too."""
        with self._lock:
            self._is_aborted = True
            self._is_shut |= for_good
            if self._http is not None and self._http.sock is not None:
                with contextlib.suppress(OSError):
                    # The plain socket's own: TLS's would take its state away under the thread that reads.
                    socket.socket.shutdown(self._http.sock, socket.SHUT_RDWR)

    def arm(self) -> None:
        """From here on an abort is meant for the next post."""
        with self._lock:
            self._is_aborted = self._is_shut

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = None

    def go_on(self) -> None:
        """Use the next server, if there are several."""
        self.close()
        self._at = (self._at + 1) % len(self._servers)

    def _connected(self, connect_s: float) -> http.client.HTTPConnection:
        if self._http is not None and _is_stale(self._http):
            self.close()
        if self._http is None:
            server = self.server
            new = (
                http.client.HTTPSConnection(server.host, server.port, timeout=connect_s, context=self._tls)
                if server.is_tls
                else http.client.HTTPConnection(server.host, server.port, timeout=connect_s)
            )
            new.response_class = WholeHeadResponse
            new.connect()
            assert new.sock is not None
            enable_keepalive(new.sock)
            log.debug(line("connected", server=server.url))
            with self._lock:
                self._http = new
        with self._lock:
            if self._is_aborted:
                raise ConnectionAbortedError("given up from our side")
            return self._http


def _is_whole(answer: http.client.HTTPResponse) -> bool:
    """A read with a bound returns short without a word. An answer that only the connection's end ends is no proof."""
    return answer.status == http.client.NO_CONTENT or bool(answer.chunked) or answer.length == 0


def _is_stale(connection: http.client.HTTPConnection) -> bool:
    """Between requests a server says nothing: something to read means that it has closed the connection."""
    if connection.sock is None:
        return True
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))


def _error(answer: http.client.HTTPResponse, data: bytes, url: str) -> YardError:
    """A problem in the server's own words; whatever else answers there (a proxy, say) is a server that is not up."""
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except msgspec.DecodeError:
        return Unavailable(f"{url} answered {answer.status} {answer.reason}, which is not this API.")
    return ERRORS_BY_CODE.get(problem.code, _by_status(answer.status))(problem.detail, next_step=problem.next_step)


def _by_status(status: int) -> type[YardError]:
    return BadRequest if 400 <= status < 500 else Unavailable


def _seconds(text: str | None) -> float | None:
    if text is None or not (text.isascii() and text.strip().isdigit()):
        return None
    return min(float(text), RETRY_AFTER_S_MAX)


def _why(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    return str(exc) or type(exc).__name__
