"""HTTP with keep-alive, bounded retries and translated errors. It knows no route of the API.

What is tried again: anything that was never sent (no connection), anything the server refused with 429, and what the
caller declares repeatable when the connection broke or a 503 came. An answer that is cut anywhere, be it in its status
line, is a broken connection. All tries end `retry_s` after the first failure.
"""

from __future__ import annotations

import http.client
import io
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from switchyard.connection import enable_keepalive
from switchyard.errors import Busy, TooLarge, Unavailable, YardError
from switchyard.http_head import WholeHeadResponse
from switchyard.sdk.problem import read_problem

BODY_BYTES_MAX = 64 << 20  # the largest answer taken: a full page of large jobs, or the output of one
LINE_BYTES_MAX = 1 << 20  # of an answer without end: an event is some kilobytes at most
BACKOFF_S_FIRST = 0.1
BACKOFF_S_MAX = 5.0
IDLE_CONNECTIONS_MAX = 8  # kept for threads that call at the same time
_TLS_CLOSED_ERRORS = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)  # the peer went away; nothing is wrong with its certificate
CHECK_SERVER = "Check that the server runs and that its URL is right (--server, YARD_URL), then try again."

OnRetry = Callable[[YardError, float], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One call. `target` is path and query; `repeatable`: doing it twice is as good as once.

    `on_sent` is told, again and again, how many bytes of the body are on their way.
    """

    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = False
    on_sent: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    retry_after_s: float


class _NotSent(Exception):
    """No connection: the server cannot have seen the request."""


class _ConnectionBroken(Exception):
    """The connection broke after something was sent: the server may have seen the request."""


class Transport:
    """Sends requests to one server, from any thread."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float,
        retry_s: float,
        ca_file: str | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self.retry_s = retry_s
        self._prefix = parts.path
        self._host, self._port = parts.hostname or "", parts.port
        self._tls = _tls_context(ca_file) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._on_retry = on_retry
        self._headers = {"Accept": "application/json", "User-Agent": "switchyard-sdk"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def send(self, request: Request, *, timeout_s: float | None = None, retry_s: float | None = None) -> bytes:
        """The body of a good answer; anything else raises, after the tries that are safe."""
        patience = _RetryBackoff(self.retry_s if retry_s is None else retry_s)
        while True:
            after_s = 0.0
            try:
                answer = self._exchange(request, timeout_s or self._timeout_s)
                if 200 <= answer.status < 300:
                    return answer.body
                error = read_problem(answer.status, answer.body, url=self.url)
                may_repeat = isinstance(error, Busy) or (error.transient and request.repeatable)
                after_s = answer.retry_after_s
            except (_NotSent, _ConnectionBroken) as exc:
                error, may_repeat = _connection_error(self.url, exc, request)
                error.__cause__ = exc.__cause__
            pause_s = patience.next_pause_s(after_s) if may_repeat else None
            if pause_s is None:
                raise error
            if self._on_retry:
                self._on_retry(error, pause_s)
            time.sleep(pause_s)

    def lines(self, request: Request, *, timeout_s: float) -> Iterator[bytes]:
        """The lines of an answer without end, on a connection of its own, until the server ends it. No second try."""
        try:
            connection = self._connect(timeout_s)
            try:
                headers = {**self._headers, "Accept": "text/event-stream", **(request.headers or {})}
                connection.request(request.method, self._prefix + request.target, headers=headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise read_problem(response.status, _read_body(response), url=self.url)
                while line := response.readline(LINE_BYTES_MAX):
                    yield line
            except (OSError, http.client.HTTPException) as exc:
                raise _ConnectionBroken from exc
            finally:
                connection.close()
        except (_NotSent, _ConnectionBroken) as exc:
            error, _ = _connection_error(self.url, exc, request)
            raise error from exc.__cause__

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(self, request: Request, timeout_s: float) -> _Answer:
        """One request and its answer on a connection nobody else uses meanwhile."""
        connection = self._take(timeout_s)
        headers = {**self._headers, **(request.headers or {})}
        body: bytes | _CountingReader | None = request.body
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(request.body))
            body = _CountingReader(request.body, request.on_sent) if request.on_sent else request.body
        is_whole = False
        try:
            connection.request(request.method, self._prefix + request.target, body=body, headers=headers)
            response = connection.getresponse()
            content = _read_body(response)
            is_whole = response.isclosed() and not response.will_close
            response.close()  # left to the garbage collector, a Ctrl-C that comes just then would be lost
        except (OSError, http.client.HTTPException) as exc:
            self.close()  # what is kept leads the same way: if that fell silent, each would cost a wait of its own
            raise _ConnectionBroken from exc
        finally:
            if is_whole:
                self._give_back(connection)
            else:
                connection.close()
        return _Answer(response.status, content, _retry_after_s(response.getheader("Retry-After")))

    def _take(self, timeout_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(timeout_s)
            # An idle connection with something to read was closed by the server: sending on it would be lost.
            if connection.sock and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        connection.response_class = WholeHeadResponse
        try:
            connection.connect()
            enable_keepalive(connection.sock)
        except OSError as exc:
            connection.close()
            raise _NotSent from exc
        return connection

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()


class _CountingReader:
    """A body that tells how much of it was taken."""

    def __init__(self, body: bytes, on_sent: Callable[[int], None]) -> None:
        self._file = io.BytesIO(body)
        self._on_sent = on_sent

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        self._on_sent(self._file.tell())
        return part


class _RetryBackoff:
    """How long to pause before the next try, until the time for trying is over."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._end: float | None = None
        self._backoff_s = BACKOFF_S_FIRST

    def next_pause_s(self, at_least_s: float) -> float | None:
        now = time.monotonic()
        if self._end is None:
            self._end = now + self._total_s
        jittered = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 — spreads clients, guards no secret
        pause_s = max(at_least_s, jittered)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_S_MAX)
        return pause_s if now + pause_s <= self._end else None


def _is_readable(sock: socket.socket) -> bool:
    poller = select.poll()  # unlike select.select, it takes any file number
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _read_body(response: http.client.HTTPResponse) -> bytes:
    if response.length is None:
        body = response.read(BODY_BYTES_MAX + 1)
    elif response.length <= BODY_BYTES_MAX:
        body = response.read()  # without an amount, http.client notices an answer that was cut short
    else:
        raise TooLarge(f"The server's answer is over {BODY_BYTES_MAX} bytes.", next_step="Ask for a smaller page.")
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge(f"The server's answer is over {BODY_BYTES_MAX} bytes.", next_step="Ask for a smaller page.")
    return body


def _connection_error(url: str, exc: _NotSent | _ConnectionBroken, request: Request) -> tuple[YardError, bool]:
    """The error to show, and whether trying again is safe and of any use."""
    cause = exc.__cause__
    is_sent = isinstance(exc, _ConnectionBroken)
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, _TLS_CLOSED_ERRORS):
        return _tls_error(url, cause), False
    if isinstance(cause, socket.gaierror):
        is_passing = cause.errno == socket.EAI_AGAIN
        return Unavailable(f"Cannot find the host of {url}: {cause.strerror}.", next_step=CHECK_SERVER), is_passing
    if isinstance(cause, TimeoutError):
        what = f"{url} did not answer in time."
    elif is_sent:
        what = f"The connection to {url} broke: {_describe_cause(cause)}."
    else:
        what = f"Cannot reach the server at {url}: {_describe_cause(cause)}."
    if is_sent and not request.repeatable:
        look = "It may have been done or not: look before you try again."
        return Unavailable(what, next_step=look), False
    return Unavailable(what, next_step=CHECK_SERVER), True


def _tls_error(url: str, cause: ssl.SSLError) -> YardError:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Unavailable(
            f"The certificate of {url} does not hold: {cause.verify_message}.",
            next_step="Name the CA's file: `yard login --ca-file FILE`, or SSL_CERT_FILE.",
        )
    return Unavailable(
        f"No TLS with {url}: {cause.reason or cause}.", next_step="Perhaps it serves plain HTTP: try http:// instead."
    )


def _describe_cause(cause: BaseException | None) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    if isinstance(cause, http.client.IncompleteRead):
        return "the answer was cut short"
    if isinstance(cause, http.client.BadStatusLine) and not isinstance(cause, http.client.RemoteDisconnected):
        return "what answered does not speak HTTP"
    return str(cause) or type(cause).__name__


def _retry_after_s(header: str | None) -> float:
    """Retry-After in seconds; our server sends no dates, and a foreign date is treated as none."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as exc:
        raise YardError(
            f"Cannot use {ca_file} as a CA file: {exc}.", next_step="It must hold PEM certificates."
        ) from exc
