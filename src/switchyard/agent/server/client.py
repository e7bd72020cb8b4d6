"""One HTTP connection to a server, with a bound on every wait and size. Several servers are used in turn."""

from __future__ import annotations

import http.client
import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from switchyard.agent.log import line
from switchyard.agent.server.credential import AgentCredentials
from switchyard.agent.server.http_exchange import describe_failure, is_stale, read_whole, shut_down
from switchyard.connection import enable_keepalive
from switchyard.errors import ERRORS_BY_CODE, BadRequest, Malformed, Unauthenticated, Unavailable, YardError
from switchyard.http_head import WholeHeadResponse
from switchyard.model.cluster.poll import INCARNATION_HEADER
from switchyard.model.files.file_frames import MEDIA
from switchyard.model.wire.api import Problem

URL_DEFAULT = "http://127.0.0.1:8080"
CONNECT_S = 5.0  # a server that accepts no connection in this time is down
ANSWER_SLACK_S = 15.0  # beyond the time the server was asked to wait: its work and the network
SERVER_ANSWER_BYTES_MAX = 256 * 2**20  # more than any real answer; 64 leases of the largest job would be 512 MiB
BODY_PIECE_BYTES = 256 * 1024  # of an answer that is read piece by piece
JSON_MEDIA = "application/json"
RETRY_AFTER_S_MAX = 60.0  # the longest Retry-After that is obeyed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The parts of a server's URL."""

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
    return ServerAddress(
        url, is_tls, host=parts.hostname, port=port or (443 if is_tls else 80), path=parts.path.rstrip("/")
    )


class ServerUnreachable(Unavailable):
    """No server could be reached, or the answer is incomplete."""

    default_next = "Check the server's address and that it runs (`curl URL/healthz`)."


class Connection:
    """A kept-alive connection to one server at a time. Used by one thread; any thread may abort it."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        *,
        ca_file: str | None = None,
        bearer: str | None = None,
        keys: AgentCredentials | None = None,
    ) -> None:
        self._servers = list(servers)
        self._server_index = 0
        self._tls = ssl.create_default_context(cafile=ca_file) if any(s.is_tls for s in servers) else None
        self._bearer = bearer
        self._keys = keys
        self._http: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()  # guards _http, which abort() uses from another thread
        self._is_aborted = False
        self._is_shut = False
        self._needs_session = False
        self.retry_after_s: float | None = None

    def within_session(self) -> Connection:
        """Use this connection only once the server has accepted this process. It takes earlier calls for a copy's."""
        self._needs_session = True
        return self

    @property
    def server(self) -> ServerAddress:
        return self._servers[self._server_index]

    def post(
        self,
        path: str,
        body: bytes,
        *,
        wait_s: float = 0.0,
        timeout_s: float = ANSWER_SLACK_S,
        on_sent: Callable[[], None] | None = None,
    ) -> bytes:
        """Return the complete body of the answer, or raise a YardError. `retry_after_s`: the server asked to wait.

        `on_sent`: called once the request is sent, while the server works on it.
        """
        return self._send("POST", path, body, wait_s=wait_s, timeout_s=timeout_s, on_sent=on_sent)

    def get(self, path: str, *, timeout_s: float = ANSWER_SLACK_S) -> bytes:
        return self._send("GET", path, None, wait_s=0.0, timeout_s=timeout_s)

    def post_objects(self, path: str, body: bytes, *, timeout_s: float = ANSWER_SLACK_S) -> bytes:
        """Post a body of frames (`model/files/file_frames.py`)."""
        return self._send("POST", path, body, wait_s=0.0, timeout_s=timeout_s, media=MEDIA)

    def post_for_objects(self, path: str, body: bytes, take: Callable[[Iterator[bytes]], None]) -> None:
        """Give the body of the answer to `take` piece by piece, so that a large one is never in memory."""
        self._send("POST", path, body, wait_s=0.0, timeout_s=ANSWER_SLACK_S, take=take)

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        wait_s: float,
        timeout_s: float,
        media: str = JSON_MEDIA,
        take: Callable[[Iterator[bytes]], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> bytes:
        if self._needs_session and self._keys and not self._keys.has_session:
            raise ServerUnreachable("The server has not accepted this process of the agent yet.")
        self.retry_after_s = None
        bearer = self._keys.bearer if self._keys else self._bearer
        try:
            connection = self._connected(min(timeout_s, CONNECT_S))
            assert connection.sock is not None
            connection.sock.settimeout(wait_s + timeout_s)
            headers = {"Content-Type": media, "Accept": MEDIA if take else JSON_MEDIA}
            if bearer:
                headers["Authorization"] = f"Bearer {bearer}"
            if self._keys and self._keys.incarnation:
                headers[INCARNATION_HEADER] = self._keys.incarnation
            connection.request(method, self.server.path + path, body, headers)
            if on_sent is not None:
                on_sent()
            answer = connection.getresponse()
            if take is not None and answer.status == http.client.OK:
                take(_pieces(answer))
            data = read_whole(answer, SERVER_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as exc:
            at = self.server.url
            self.close()
            if not self._is_aborted:
                self.use_next_server()
            raise ServerUnreachable(f"{at} did not answer: {describe_failure(exc)}.") from exc
        except BaseException:
            self.close()  # `take` ended before the answer did
            raise
        if answer.will_close:
            self.close()
        if 200 <= answer.status < 300:
            if self._keys and bearer:
                self._keys.note_accepted(bearer)
            return data
        self.retry_after_s = _seconds(answer.getheader("Retry-After"))
        error = _error(answer, data, self.server.url)
        if isinstance(error, Unauthenticated) and self._keys and bearer and self._keys.note_refused(bearer):
            raise ServerUnreachable(
                f"{self.server.url} does not take this credential; another one is tried."
            ) from error
        raise error

    def abort(self, *, for_good: bool = False) -> None:
        """End a waiting post from another thread; its answer is lost. `for_good`: also every later post."""
        with self._lock:
            self._is_aborted = True
            self._is_shut |= for_good
            shut_down(self._http)

    def clear_abort(self) -> None:
        """Forget an abort that was meant for an earlier post."""
        with self._lock:
            self._is_aborted = self._is_shut

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = None

    def use_next_server(self) -> None:
        """Use the next server, if there are several."""
        self.close()
        self._server_index = (self._server_index + 1) % len(self._servers)

    def _connected(self, connect_s: float) -> http.client.HTTPConnection:
        if self._http is not None and is_stale(self._http):
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


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read1(BODY_PIECE_BYTES):
        yield piece


def _error(answer: http.client.HTTPResponse, data: bytes, url: str) -> YardError:
    """The error that the server describes. Any other answer, such as a proxy's, means that the server is down."""
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
