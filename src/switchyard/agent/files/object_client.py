"""The agent's calls for objects: read them, send them, say what an attempt left. Every hash is checked here."""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from switchyard.agent.files.inputs.staging_errors import ObjectLost
from switchyard.agent.log import line
from switchyard.agent.server.client import Connection, ServerUnreachable
from switchyard.errors import BadRequest, NotFound, Unavailable, YardError
from switchyard.model.files.file_frames import BadFrame, FrameKind, decode_frames, encode_frame
from switchyard.model.files.file_tree import TREE_BYTES_MAX, hash_of
from switchyard.model.files.file_views import FileAnswer
from switchyard.model.files.files import (
    AttemptOutputs,
    MissingAnswer,
    MissingQuery,
    ObjectsQuery,
    OutputRoom,
    SignedUpload,
    TreeAnswer,
    TreeQuery,
)

STORE_S = 30.0  # for one step of a call to an object store
STORE_AWAY_S = 60.0  # uploads pass through the server for so long after one that the store did not take
IDLE_S = 3.0  # after which a connection to a store is not used again
UPLOAD_S = 60.0  # for the server to store a body: its disk may be slow
SEAL_S = 300.0  # for the server to check a tree of a million files
T = TypeVar("T")
TakeObject = Callable[[bytes, bytes], None]  # a digest and the object's bytes

log = logging.getLogger(__name__)


class ObjectMismatch(Unavailable):
    """An object does not have the SHA-256 under which it was asked for."""

    default_next = "The store or the network changed it; it is asked for again."


@dataclass(frozen=True, slots=True)
class AttemptRights:
    """In whose name objects are read and sent: an attempt of this agent's cluster."""

    job: str
    fence: int

    @property
    def query(self) -> str:
        return f"job={self.job}&fence={self.fence}"


@dataclass(slots=True)
class _ReadAnswer:
    """What an answer has besides objects: addresses of objects, and objects that the store does not have."""

    addresses: dict[bytes, str] = field(default_factory=dict)
    absent: list[bytes] = field(default_factory=list)


class ObjectStoreCalls(Protocol):
    """What staging and uploading need of the server. Used by one thread at a time."""

    def read(self, rights: AttemptRights, root: bytes, digests: Sequence[bytes], take: TakeObject) -> None:
        """Give each object to `take`, verified, in any order. Raises if one cannot be had."""

    def room(self, rights: AttemptRights) -> OutputRoom:
        """How much of the attempt's output files the server takes."""

    def absent(self, rights: AttemptRights, digests: Iterable[bytes]) -> set[bytes]:
        """Those of these objects that the owner of the job does not hold. Nothing is reserved for them."""

    def missing(self, rights: AttemptRights, sizes: Mapping[bytes, int]) -> MissingAnswer:
        """Which of these objects must be sent, and where to. Refused if there is no room for them."""

    def send(self, rights: AttemptRights, objects: Mapping[bytes, bytes], uploads: Mapping[str, SignedUpload]) -> None:
        """Store these objects; those in `uploads` go straight to the object store, if it can be reached."""

    def seal(self, rights: AttemptRights, root: bytes) -> TreeAnswer: ...

    def tell(self, outputs: AttemptOutputs) -> None: ...

    def answer_view(self, answer: FileAnswer) -> None: ...

    def close(self) -> None: ...


class ObjectClient:
    """The calls over HTTP."""

    def __init__(self, connection: Connection, *, ca_file: str | None = None) -> None:
        self._connection = connection
        self._store = SignedAddresses(ca_file)
        self._store_away_until = 0.0

    def read(self, rights: AttemptRights, root: bytes, digests: Sequence[bytes], take: TakeObject) -> None:
        answer = self._read(rights, root, digests, take)
        doubts: dict[bytes, YardError] = {}
        for digest, address in answer.addresses.items():
            try:
                data = _verified(digest, self._store.get(address))
            except (NotFound, ObjectMismatch) as exc:
                doubts[digest] = exc
                continue
            take(digest, data)
        if doubts:
            answer.absent += self._read_doubtful(rights, root, doubts, take)
        if answer.absent:
            raise ObjectLost(answer.absent[0], root=root)

    def _read_doubtful(
        self, rights: AttemptRights, root: bytes, doubts: Mapping[bytes, YardError], take: TakeObject
    ) -> list[bytes]:
        """Let the server read objects that were not at their addresses. Returns those that the store has lost.

        The server notes them, so that somebody can send them again.
        """
        error = next(iter(doubts.values()))
        try:
            answer = self._read(rights, root, list(doubts), take, is_read_by_server=True)
        except BadRequest:
            raise error from None  # a server of an older version
        if answer.addresses:
            raise error
        return answer.absent

    def _read(
        self,
        rights: AttemptRights,
        root: bytes,
        digests: Sequence[bytes],
        take: TakeObject,
        *,
        is_read_by_server: bool = False,
    ) -> _ReadAnswer:
        """One request: take the objects that come with its answer."""
        wanted = set(digests)
        answer = _ReadAnswer()

        def take_frames(pieces: Iterator[bytes]) -> None:
            for frame in decode_frames(pieces):
                if frame.digest not in wanted:
                    raise BadFrame("an object was sent that was not asked for")
                wanted.discard(frame.digest)
                if frame.kind is FrameKind.CONTENT:
                    take(frame.digest, _verified(frame.digest, frame.data))
                elif frame.kind is FrameKind.ADDRESS:
                    answer.addresses[frame.digest] = frame.data.decode()
                else:
                    answer.absent.append(frame.digest)

        query = ObjectsQuery(
            root=root.hex(), objects=[digest.hex() for digest in digests], is_read_by_server=is_read_by_server
        )
        try:
            self._connection.post_for_objects(
                f"/v1/agents/files/read?{rights.query}", msgspec.json.encode(query), take_frames
            )
        except (BadFrame, UnicodeDecodeError) as exc:
            raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc
        if wanted:
            raise ServerUnreachable(f"The server left out {len(wanted)} of {len(digests)} objects.")
        return answer

    def room(self, rights: AttemptRights) -> OutputRoom:
        try:
            body = self._connection.get(f"/v1/agents/files/room?{rights.query}", timeout_s=UPLOAD_S)
            return msgspec.json.decode(body, type=OutputRoom)
        except NotFound:  # a server that is older than this call
            return OutputRoom()
        except msgspec.DecodeError as exc:
            raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc

    def absent(self, rights: AttemptRights, digests: Iterable[bytes]) -> set[bytes]:
        query = MissingQuery(objects=[digest.hex() for digest in digests])
        answer = self._ask(f"/v1/agents/files/missing?{rights.query}", query, MissingAnswer)
        return {bytes.fromhex(text) for text in answer.missing}

    def missing(self, rights: AttemptRights, sizes: Mapping[bytes, int]) -> MissingAnswer:
        query = MissingQuery(objects=[digest.hex() for digest in sizes], sizes=list(sizes.values()))
        return self._ask(f"/v1/agents/files/missing?{rights.query}", query, MissingAnswer)

    def send(self, rights: AttemptRights, objects: Mapping[bytes, bytes], uploads: Mapping[str, SignedUpload]) -> None:
        uploaded = {digest for digest, data in objects.items() if self._put(uploads.get(digest.hex()), data)}
        try:
            self._send_frames(rights, objects, uploaded)
        except BadRequest:
            if not uploaded:
                raise
            self._send_frames(rights, objects, set())  # the store has lost what it took

    def _send_frames(self, rights: AttemptRights, objects: Mapping[bytes, bytes], uploaded: set[bytes]) -> None:
        body = b"".join(
            encode_frame(FrameKind.UPLOADED, digest, b"")
            if digest in uploaded
            else encode_frame(FrameKind.CONTENT, digest, data)
            for digest, data in objects.items()
        )
        self._connection.post_objects(f"/v1/agents/files/objects?{rights.query}", body, timeout_s=UPLOAD_S)

    def _put(self, signed: SignedUpload | None, data: bytes) -> bool:
        """Send one object straight to the store. False: it must go through the server."""
        if signed is None or time.monotonic() < self._store_away_until:
            return False
        try:
            self._store.put(signed, data)
        except Unavailable as exc:
            self._store_away_until = time.monotonic() + STORE_AWAY_S
            log.warning(line("store-away", error=exc.detail, instead="files pass through the server"))
            return False
        return True

    def seal(self, rights: AttemptRights, root: bytes) -> TreeAnswer:
        query = TreeQuery(root=root.hex())
        return self._ask(f"/v1/agents/files/trees?{rights.query}", query, TreeAnswer, timeout_s=SEAL_S)

    def tell(self, outputs: AttemptOutputs) -> None:
        self._connection.post("/v1/agents/outputs", msgspec.json.encode(outputs))

    def answer_view(self, answer: FileAnswer) -> None:
        self._connection.post("/v1/agents/files/views", msgspec.json.encode(answer))

    def close(self) -> None:
        self._connection.abort(for_good=True)
        self._store.close()

    def _ask(self, path: str, query: Any, answer: type[T], *, timeout_s: float = UPLOAD_S) -> T:
        body = self._connection.post(path, msgspec.json.encode(query), timeout_s=timeout_s)
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as exc:
            raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc


def _verified(digest: bytes, data: bytes) -> bytes:
    if hash_of(data) != digest:
        raise ObjectMismatch(f"The object {digest.hex()[:12]} came with another content.")
    return data


class SignedAddresses:
    """Signed addresses of an object store. One connection is kept, to the store that was used last."""

    def __init__(self, ca_file: str | None = None) -> None:
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._http: http.client.HTTPConnection | None = None
        self._place: tuple[str, str] = ("", "")
        self._used_at = 0.0

    def get(self, url: str) -> bytes:
        return self._call("GET", url, None, {})

    def put(self, signed: SignedUpload, data: bytes) -> None:
        self._call("PUT", signed.url, data, dict(signed.headers))

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _call(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        parts = urlsplit(url)
        at = parts.netloc  # the rest of the address is a secret for a bounded time: it is in no message
        deadline = time.monotonic() + 10 * STORE_S
        try:
            connection = self._connected(parts.scheme, parts.netloc)
            connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, body, headers)
            answer = connection.getresponse()
            data = bytearray()
            while piece := answer.read(2**18):
                data += piece
                if len(data) > TREE_BYTES_MAX or time.monotonic() > deadline:
                    raise http.client.HTTPException("the answer is too large or too slow")
            if answer.will_close:
                self.close()
        except (OSError, http.client.HTTPException, ValueError) as exc:
            self.close()
            raise Unavailable(f"The object store at {at} did not answer: {str(exc) or type(exc).__name__}.") from exc
        if 200 <= answer.status < 300:
            return bytes(data)
        if method == "GET" and answer.status == http.client.NOT_FOUND:
            raise NotFound(f"The object store at {at} does not have an object of the job.")
        # Also 403: the address was valid for a bounded time. With the next try comes a new one.
        raise Unavailable(f"The object store at {at} answered {answer.status} {answer.reason}.")

    def _connected(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        is_idle = time.monotonic() - self._used_at > IDLE_S  # the store may have closed it
        self._used_at = time.monotonic()
        if self._http is None or is_idle or self._place != (scheme, netloc):
            self.close()
            if scheme == "https":
                self._http = http.client.HTTPSConnection(netloc, timeout=STORE_S, context=self._context())
            elif scheme == "http":
                self._http = http.client.HTTPConnection(netloc, timeout=STORE_S)
            else:
                raise ValueError(f"{scheme!r} is no address of a store")
            self._place = (scheme, netloc)
        return self._http

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            if self._ca_file is not None:
                with contextlib.suppress(ssl.SSLError):  # the server's check of the file came first
                    self._tls.load_verify_locations(self._ca_file)
        return self._tls
