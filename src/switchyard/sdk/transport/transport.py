"""HTTP with keep-alive, bounded retries and translated errors. It knows no route of the API.

A request is retried if it was never sent (no connection), if the server answered 429, or if the caller declared it
repeatable and the connection broke or a 502, 503 or 504 came. A truncated response, even in its status line, counts as
a broken connection. Retries end `retry_s` after the first failure. Waits and transfers that have begun retry for
`outage_s`: once the server has answered, its address is right, and a silence is an outage.
"""

from __future__ import annotations

import http.client
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from switchyard import errors
from switchyard.connection import enable_keepalive
from switchyard.decoder_warmup import warm_type
from switchyard.errors import Busy, TooLarge, Unavailable, YardError
from switchyard.http_head import WholeHeadResponse
from switchyard.model.wire.api import Problem
from switchyard.sdk.transport.retry_backoff import OnOutage, RetryBackoff

BODY_BYTES_MAX = 64 << 20  # the largest response: a full page of large jobs, or the output of one job
SEND_BYTES = 256 * 1024  # of a body that is counted as it is sent
PIECE_BYTES = 256 * 1024  # of a response that is read in pieces
LINE_BYTES_MAX = 1 << 20  # in an endless response: an event has a few kilobytes
IDLE_CONNECTIONS_MAX = 8  # kept for threads that call at the same time
_TLS_CLOSED_ERRORS = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)  # the peer went away; nothing is wrong with its certificate
CHECK_SERVER = "Check that the server runs and that its URL is right (--server, YARD_URL), then try again."

OnRetry = Callable[[YardError, float], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `target`: path and query. `repeatable`: sending it twice has the effect of once.

    `body`: a tuple is sent part by part, without a copy of it. `on_sent` is called with the number of bytes of the body
    sent so far.
    """

    method: str
    target: str
    body: bytes | tuple[bytes, ...] | None = None
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
        outage_s: float = 0.0,
        ca_file: str | None = None,
        on_retry: OnRetry | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self.retry_s = retry_s
        self.has_answered = False
        self.is_patient = False  # True: every call retries as long as a wait
        self._outage_s = max(outage_s, retry_s)
        self._prefix = parts.path
        self._host, self._port = parts.hostname or "", parts.port
        self._tls = _tls_context(ca_file) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._on_retry = on_retry
        self._on_outage = on_outage
        self._headers = {"Accept": "application/json", "User-Agent": "switchyard-sdk"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    @property
    def patience_s(self) -> float:
        """How long a wait or a transfer retries. A first contact fails soon: the address may be wrong."""
        return self._outage_s if self.has_answered else self.retry_s

    def send(self, request: Request, *, timeout_s: float | None = None, retry_s: float | None = None) -> bytes:
        """Send a request, with safe retries. Return the body of a 2xx response; raise for others."""
        if retry_s is None:
            retry_s = self.patience_s if self.is_patient else self.retry_s
        backoff = RetryBackoff(retry_s)
        while True:
            after_s = 0.0
            try:
                answer = self._exchange(request, timeout_s or self._timeout_s)
                self.has_answered = self.has_answered or answer.status < 500  # a gateway's 502 is not the server
                if 200 <= answer.status < 300:
                    return answer.body
                error = read_problem(answer.status, answer.body, url=self.url)
                may_repeat = isinstance(error, Busy) or (error.transient and request.repeatable)
                after_s = answer.retry_after_s
            except (_NotSent, _ConnectionBroken) as exc:
                error, may_repeat = _connection_error(self.url, exc, request)
                error.__cause__ = exc.__cause__
            pause_s = backoff.next_pause_s(after_s) if may_repeat else None
            if pause_s is None:
                raise error
            self.pause(error, pause_s, backoff)

    def pause(self, error: YardError, pause_s: float, backoff: RetryBackoff) -> None:
        """Tell the callbacks about a failure, and wait before the retry."""
        if self._on_retry:
            self._on_retry(error, pause_s)
        if self._on_outage:
            self._on_outage(backoff.outage(error))
        time.sleep(pause_s)

    def lines(self, request: Request, *, timeout_s: float) -> Iterator[bytes]:
        """Yield the lines of an endless response, on a connection of its own. No retries."""
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

    def pieces(self, request: Request, *, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield a response of any size piece by piece. No retries. A truncated response raises Unavailable."""
        try:
            connection = self._take(timeout_s or self._timeout_s)
            is_whole = False
            try:
                response = self._begin(connection, request)
                self.has_answered = self.has_answered or response.status < 500
                if not 200 <= response.status < 300:
                    raise read_problem(response.status, _read_body(response), url=self.url)
                while piece := response.read(PIECE_BYTES):
                    yield piece
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
                is_whole = response.isclosed() and not response.will_close
            except (OSError, http.client.HTTPException) as exc:
                raise _ConnectionBroken from exc
            finally:
                if is_whole:
                    self._give_back(connection)
                else:
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
        """Send one request and read its response, on a connection that no other thread uses."""
        connection = self._take(timeout_s)
        is_whole = False
        try:
            response = self._begin(connection, request)
            content = _read_body(response)
            is_whole = response.isclosed() and not response.will_close
            response.close()  # if the garbage collector closed it, a Ctrl-C at that moment would be lost
        except (OSError, http.client.HTTPException) as exc:
            self.close()  # idle connections to a silent server would each cost a timeout
            raise _ConnectionBroken from exc
        finally:
            if is_whole:
                self._give_back(connection)
            else:
                connection.close()
        return _Answer(response.status, content, _retry_after_s(response.getheader("Retry-After")))

    def _begin(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        headers = {**self._headers, **(request.headers or {})}
        body: bytes | Iterator[memoryview] | None = None
        if request.body is not None:
            parts = request.body if isinstance(request.body, tuple) else (request.body,)
            headers.setdefault("Content-Type", "application/json")
            headers["Content-Length"] = str(sum(map(len, parts)))
            if isinstance(request.body, bytes) and request.on_sent is None:
                body = request.body
            else:
                body = _pieces_of(parts, request.on_sent)
        connection.request(request.method, self._prefix + request.target, body=body, headers=headers)
        return connection.getresponse()

    def _take(self, timeout_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(timeout_s)
            # A readable idle connection was closed by the server: a request on it would be lost.
            if connection.sock and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=self._tls, blocksize=SEND_BYTES
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s, blocksize=SEND_BYTES)
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


def _pieces_of(parts: Iterable[bytes], on_sent: Callable[[int], None] | None) -> Iterator[memoryview]:
    """Yield a request body in pieces, without a copy, and report how much of it was sent."""
    sent = 0
    for part in parts:
        view = memoryview(part)
        for begin in range(0, len(view), SEND_BYTES):
            piece = view[begin : begin + SEND_BYTES]
            yield piece
            sent += len(piece)
            if on_sent:
                on_sent(sent)


def _is_readable(sock: socket.socket) -> bool:
    poller = select.poll()  # unlike select.select, it takes file descriptors above 1023
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _read_body(response: http.client.HTTPResponse) -> bytes:
    if response.length is None:
        body = response.read(BODY_BYTES_MAX + 1)
    elif response.length <= BODY_BYTES_MAX:
        body = response.read()  # without an amount, http.client notices a truncated response
    else:
        raise TooLarge(f"The server's answer is over {BODY_BYTES_MAX} bytes.", next_step="Ask for a smaller page.")
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge(f"The server's answer is over {BODY_BYTES_MAX} bytes.", next_step="Ask for a smaller page.")
    return body


def _connection_error(url: str, exc: _NotSent | _ConnectionBroken, request: Request) -> tuple[YardError, bool]:
    """Return the error to raise, and whether a retry is safe and useful."""
    cause = exc.__cause__
    is_sent = isinstance(exc, _ConnectionBroken)
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, _TLS_CLOSED_ERRORS):
        return _tls_error(url, cause), False
    if isinstance(cause, socket.gaierror):
        is_passing = cause.errno == socket.EAI_AGAIN
        return Unavailable(f"Cannot find the host of {url}: {cause.strerror}.", next_step=CHECK_SERVER), is_passing
    if isinstance(cause, TimeoutError):
        detail = f"{url} did not answer in time."
    elif is_sent:
        detail = f"The connection to {url} broke: {_describe_cause(cause)}."
    else:
        detail = f"Cannot reach the server at {url}: {_describe_cause(cause)}."
    if is_sent and not request.repeatable:
        look = "It may have been done or not: look before you try again."
        return Unavailable(detail, next_step=look), False
    return Unavailable(detail, next_step=CHECK_SERVER), True


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
    """Parse Retry-After in seconds. Dates, which our server does not send, count as 0."""
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


EXCERPT_CHARS_MAX = 200  # of a foreign response's body: enough to recognise its sender

# For responses without our error code. Gateways send 502 and 504 when the server behind them is away.
ERRORS_BY_STATUS: dict[int, type[YardError]] = {
    400: errors.BadRequest,
    401: errors.Unauthenticated,
    403: errors.Denied,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Gone,
    413: errors.TooLarge,
    415: errors.WrongMedia,
    422: errors.PolicyRefused,
    429: errors.Busy,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def read_problem(status: int, body: bytes, *, url: str) -> YardError:
    """Return the exception of an HTTP error response."""
    warm_type(Problem)
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _foreign_answer_error(status, body, url=url)
    kind = errors.ERRORS_BY_CODE.get(problem.code) or _error_of_status(status)
    return kind(problem.detail or problem.title, next_step=problem.next_step)


def _foreign_answer_error(status: int, body: bytes, *, url: str) -> YardError:
    words = re.sub(r"<[^>]*>|[\x00-\x20\x7f]+", " ", body[: 16 * EXCERPT_CHARS_MAX].decode(errors="replace"))
    excerpt = " ".join(words.split())[:EXCERPT_CHARS_MAX]
    quoted = f": {excerpt}" if excerpt else ""
    kind = _error_of_status(status)
    check = f"Check that {url} is a Switchyard server (--server, YARD_URL), or look at the proxy before it."
    return kind(f"{url} answered {status}, and not as a Switchyard server does{quoted}", next_step=check)


def _error_of_status(status: int) -> type[YardError]:
    if status in ERRORS_BY_STATUS:
        return ERRORS_BY_STATUS[status]
    if 400 <= status < 500:
        return errors.BadRequest
    return errors.Internal if status >= 500 else YardError
