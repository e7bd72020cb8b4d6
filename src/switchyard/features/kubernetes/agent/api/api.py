"""A thin client of the Kubernetes API over http.client: JSON in and out, a time-out and a bound on every answer.

Failures: api_errors.py.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from switchyard.agent.server.client import CONNECT_S
from switchyard.agent.server.http_exchange import describe_failure, is_stale, read_whole, shut_down
from switchyard.connection import enable_keepalive
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable, is_transient
from switchyard.features.kubernetes.agent.api.connection import ApiAccess, ClusterConnection
from switchyard.http_head import WholeHeadResponse

TIMEOUT_S = 30.0  # for the whole of a usual answer; the API server itself gives up after 60 s
API_ANSWER_BYTES_MAX = 512 * 2**20  # more than any real list
PAGE_SIZE = 500  # objects in one answer to a list
IDLE_CONNECTIONS_MAX = 16
CLOCK_S = 60.0  # between two looks at the API server's clock
CLOCK_DOUBT_S = 2.0  # its answers have whole seconds, and take a while
API_PIECE_BYTES = 64 * 1024
JSON_MEDIA = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML

T = TypeVar("T")
Query = Mapping[str, str | int | bool]


class KubernetesApi:
    """Used by several threads: each call takes a connection of its own from a pool."""

    def __init__(self, connection: ClusterConnection, *, timeout_s: float = TIMEOUT_S) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[tuple[int, http.client.HTTPConnection]] = []  # with the credential's generation
        self._streams: set[ApiStream] = set()
        self._is_closed = False
        self._skew_s = 0.0  # how much the API server's clock is ahead of ours
        self._skew_at = float("-inf")

    def server_time(self) -> float:
        """The API server's clock, to the second, if it differs from ours by more than that."""
        return time.time() + self._skew_s

    @property
    def namespace(self) -> str:
        """The namespace that the kubeconfig or the service account names; empty: none."""
        return self._connection.access().namespace

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        return decode_answer(self.call("GET", path, query=query), dict[str, Any], path)

    def get_as(self, type_: type[T], path: str, query: Query | None = None, *, timeout_s: float | None = None) -> T:
        """As `get`, decoded by msgspec."""
        return decode_answer(self.call("GET", path, query=query, timeout_s=timeout_s), type_, path)

    def list_pages(self, path: str, query: Query | None = None) -> Iterator[ObjectPage]:
        """A list page by page, all of one version. Raises an ApiRefusal with `is_expired` if it takes too long."""
        parameters = {"limit": PAGE_SIZE, **(query or {})}
        while True:
            page = self.get_as(ObjectPage, path, parameters)
            yield page
            if not page.metadata.continue_:
                return
            parameters = {**parameters, "continue": page.metadata.continue_}

    def list_all(self, path: str, query: Query | None = None) -> ObjectList:
        """All objects at once: for lists that are short."""
        pages = list(self.list_pages(path, query))
        items = [item for page in pages for item in page.items or ()]
        return ObjectList(items, pages[-1].metadata.resource_version)

    def create(self, path: str, body: object, query: Query | None = None) -> dict[str, Any]:
        answer = self.call("POST", path, query=query, body=msgspec.json.encode(body))
        return decode_answer(answer, dict[str, Any], path)

    def apply(
        self, path: str, body: object, *, manager: str, force: bool = False, query: Query | None = None
    ) -> dict[str, Any]:
        """Server-side apply. `force`: take over fields of other managers instead of a conflict (409)."""
        parameters = {**(query or {}), "fieldManager": manager, "force": force}
        return self.patch(path, body, media=APPLY_PATCH, query=parameters)

    def patch(self, path: str, body: object, *, media: str = MERGE_PATCH, query: Query | None = None) -> dict[str, Any]:
        answer = self.call("PATCH", path, query=query, body=msgspec.json.encode(body), media=media)
        return decode_answer(answer, dict[str, Any], path)

    def delete(
        self, path: str, *, propagation: str = "Foreground", uid: str = "", timeout_s: float | None = None
    ) -> None:
        """Delete an object. `uid`: only this one; another object of the name is a conflict (409).

        The propagation is always named: without one, a Job's pods would be orphaned and run on.
        """
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        self.call("DELETE", path, body=msgspec.json.encode(options), timeout_s=timeout_s)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        media: str = JSON_MEDIA,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send one request and return the body of its answer, undecoded."""
        access = self._connection.access()
        with self._lent(access, self._timeout_s if timeout_s is None else timeout_s) as connection:
            answer, data = self._exchange(connection, access, method, path, query=query, body=body, media=media)
            if answer.will_close:
                connection.close()
        self._note_clock(answer.getheader("Date"))
        if not 200 <= answer.status < 300:
            raise self._error(access, answer, data=data, method=method, path=path)
        return data

    def _note_clock(self, date: str | None) -> None:
        if date is None or time.monotonic() - self._skew_at < CLOCK_S:
            return
        with contextlib.suppress(ValueError, TypeError):
            skew_s = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
            self._skew_s, self._skew_at = skew_s if abs(skew_s) > CLOCK_DOUBT_S else 0.0, time.monotonic()

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        query: Query | None = None,
        timeout_s: int = 300,
        silence_s: float = 60.0,
    ) -> Iterator[WatchEvent]:
        """Yield events until the server ends the watch, after `timeout_s` at the latest.

        Raises an ApiRefusal with `is_expired` when a new list is needed, and ApiUnavailable when the connection ends or
        nothing, not even a bookmark, comes for `silence_s`. The server sends bookmarks about once a minute; a shorter
        `silence_s` ends most watches that have nothing to tell.
        """
        parameters = {
            **(query or {}),
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_s,
        }
        for row in whole_lines(self.open_stream(path, parameters, silence_s=silence_s)):
            event = decode_answer(row, WatchEvent, path)
            if event.type == "ERROR":
                said = decode_answer(event.object, dict[str, Any], path)
                status, reason = int(said.get("code") or 500), str(said.get("reason") or "")
                if is_transient(status):
                    raise ApiUnavailable(f"the watch of {path} ended: {said.get('message')}", http_status=status)
                raise ApiRefusal(status, reason, str(said.get("message") or ""), request=f"watch {path}")
            yield event

    def open_stream(self, path: str, query: Query | None = None, *, silence_s: float) -> ApiStream:
        """An answer that is read as it comes. Nothing is sent before its first piece is asked for."""
        return ApiStream(self, path, query, silence_s)

    def close(self) -> None:
        """End all streams and drop all connections. Later calls open new ones; later streams fail."""
        with self._lock:
            self._is_closed = True
            for _, connection in self._idle:
                connection.close()
            self._idle.clear()
            streams = list(self._streams)
        for stream in streams:
            stream.abort()

    def begin_stream(
        self, stream: ApiStream, path: str, query: Query | None, silence_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """For ApiStream: send the request on a connection of its own."""
        access = self._connection.access()
        connection = self._connect(access, min(CONNECT_S, silence_s))
        with self._lock:
            self._streams.add(stream)
        try:
            if self._is_closed:
                raise ApiUnavailable("The client of the Kubernetes API is closed.", is_unsent=True)
            assert connection.sock is not None
            connection.sock.settimeout(silence_s)
            connection.request("GET", _target(access, path, query), headers=_headers(access, JSON_MEDIA))
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise self._error(access, answer, data=answer.read(API_ANSWER_BYTES_MAX), method="GET", path=path)
        except BaseException:
            connection.close()
            self.end_stream(stream)
            raise
        return connection, answer

    def end_stream(self, stream: ApiStream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        access: ApiAccess,
        method: str,
        path: str,
        *,
        query: Query | None,
        body: bytes | None,
        media: str,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            connection.request(method, _target(access, path, query), body, _headers(access, media))
            answer = connection.getresponse()
            data = read_whole(answer, API_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise ApiUnavailable(f"{_action(method, path)} at {access.address.url}: {describe_failure(exc)}.") from exc
        return answer, data

    @contextlib.contextmanager
    def _lent(self, access: ApiAccess, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
        """A connected connection for one request. It goes back to the pool if it is still open."""
        connection = self._idle_connection(access) or self._connect(access, min(CONNECT_S, timeout_s))
        assert connection.sock is not None
        connection.sock.settimeout(timeout_s)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if connection.sock is not None and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append((access.generation, connection))
                return
        connection.close()

    def _idle_connection(self, access: ApiAccess) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                generation, connection = self._idle.pop()
            if generation == access.generation and not is_stale(connection):
                return connection
            connection.close()

    def _connect(self, access: ApiAccess, connect_s: float) -> http.client.HTTPConnection:
        address = access.address
        connection = http.client.HTTPConnection(address.host, address.port, timeout=connect_s)
        connection.response_class = WholeHeadResponse
        try:
            connection.connect()
            assert connection.sock is not None
            enable_keepalive(connection.sock)
            if access.tls is not None:
                # Not HTTPSConnection: a kubeconfig may name another server name for TLS than the address.
                connection.sock = access.tls.wrap_socket(connection.sock, server_hostname=access.tls_name)
        except OSError as exc:
            connection.close()
            raise ApiUnavailable(
                f"The Kubernetes API at {address.url} cannot be reached: {describe_failure(exc)}.", is_unsent=True
            ) from exc
        return connection

    def _error(
        self, access: ApiAccess, answer: http.client.HTTPResponse, data: bytes, method: str, path: str
    ) -> ApiRefusal | ApiUnavailable:
        try:
            said = msgspec.json.decode(data, type=ApiStatus)
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = ApiStatus(answer.reason, data[:300].decode("utf-8", "replace").strip())
        status, request = answer.status, _action(method, path)
        reason, message = said.reason or answer.reason, said.message or ""
        if status == http.client.UNAUTHORIZED:
            self._connection.forget()
            return ApiUnavailable(
                f"Kubernetes does not accept the agent's credential from {access.source} ({request}: 401 {message}).",
                http_status=status,
                is_unsent=True,
                next_step="Renew the token or certificate in that file; the agent reads it again by itself.",
            )
        if is_transient(status):
            return ApiUnavailable(f"{request}: {status} {reason}: {message[:1000]}", http_status=status)
        return ApiRefusal(status, reason, message[:4000], request=request)


class ApiStream:
    """An answer that is read as it comes, by one thread. Any thread may abort it."""

    def __init__(self, api: KubernetesApi, path: str, query: Query | None, silence_s: float) -> None:
        self._api, self._path, self._query, self._silence_s = api, path, query, silence_s
        self._connection: http.client.HTTPConnection | None = None
        self._is_aborted = False

    def __iter__(self) -> Iterator[bytes]:
        """Raises ApiUnavailable if the answer is cut, aborted, or silent for too long."""
        connection: http.client.HTTPConnection | None = None
        try:
            connection, answer = self._api.begin_stream(self, self._path, self._query, self._silence_s)
            self._connection = connection
            while not self._is_aborted and (piece := answer.read1(API_PIECE_BYTES)):
                yield piece
            if self._is_aborted:
                raise ApiUnavailable(f"{_action('GET', self._path)}: given up from our side.")
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as exc:
            # The last two: http.client lost its socket to an abort.
            raise ApiUnavailable(f"{_action('GET', self._path)}: the answer was cut: {describe_failure(exc)}.") from exc
        finally:
            self._connection = None
            self._api.end_stream(self)
            if connection is not None:
                connection.close()

    def abort(self) -> None:
        """End the stream from another thread."""
        self._is_aborted = True
        shut_down(self._connection)


def _target(access: ApiAccess, path: str, query: Query | None) -> str:
    parameters = {key: str(value).lower() if isinstance(value, bool) else value for key, value in (query or {}).items()}
    return access.address.path + path + (f"?{urlencode(parameters)}" if parameters else "")


def _headers(access: ApiAccess, media: str) -> dict[str, str]:
    headers = {"Content-Type": media, "Accept": f"{JSON_MEDIA}, */*", "User-Agent": "switchyard-agent"}
    if access.bearer:
        headers["Authorization"] = f"Bearer {access.bearer}"
    return headers


def _action(method: str, path: str) -> str:
    verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, method)
    return f"{verb} {path}"


EVENT_BYTES_MAX = 16 * 2**20  # of one event of a watch; etcd refuses objects over 1.5 MiB


class ApiStatus(Struct, frozen=True):
    """What we read of a `Status` object."""

    reason: str | None = None
    message: str | None = None


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectPage(Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class ObjectList(Struct, frozen=True):
    """All objects of a list, undecoded, and the version at which a watch goes on."""

    items: list[msgspec.Raw]
    resource_version: str


class WatchEvent(Struct, frozen=True):
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK. ERROR is raised as an ApiRefusal instead."""

    type: str
    object: msgspec.Raw


def decode_answer(data: bytes | msgspec.Raw, type_: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ApiUnavailable(f"The answer to {path} is not what the Kubernetes API sends: {exc}.") from exc


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines of a stream. A cut last line is an incomplete answer."""
    rest = bytearray()
    for piece in pieces:
        rest += piece
        if b"\n" not in piece:
            if len(rest) > EVENT_BYTES_MAX:
                raise ApiUnavailable(f"An event of a watch is over {EVENT_BYTES_MAX} bytes.")
            continue
        *whole, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        yield from (row for row in whole if row.strip())
    if rest.strip():
        raise ApiUnavailable("A watch ended within an event.")
