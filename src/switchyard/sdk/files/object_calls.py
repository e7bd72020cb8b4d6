"""The calls that carry objects: which are missing, send them, seal a tree, read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from switchyard.model.files.file_frames import MEDIA, Frame, decode_frames
from switchyard.model.files.files import (
    MissingAnswer,
    MissingQuery,
    ObjectsQuery,
    StoredObjects,
    TreeAnswer,
    TreeQuery,
    UploadQuery,
    UploadRoom,
)
from switchyard.model.wire.api import Version
from switchyard.sdk.transport.calls import ApiCalls, api_path
from switchyard.sdk.transport.transport import Request, Transport

OBJECTS_TIMEOUT_S = 300.0  # of silence: a server makes thousands of small objects durable before it answers
T = TypeVar("T")


class ObjectCalls(ApiCalls):
    """One method for each call. All can be repeated: an object is known by its hash."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def reach_server(self) -> None:
        """Ask for an answer if the server has not given one yet: a wrong address fails before much is read."""
        if not self._transport.has_answered:
            self._get(api_path("version"), Version)

    def seal_tree(self, root: bytes) -> TreeAnswer:
        return self._ask(api_path("files", "trees"), TreeQuery(root.hex()), TreeAnswer)

    def check_room(self, query: UploadQuery) -> UploadRoom:
        return self._ask(api_path("files", "room"), query, UploadRoom)

    def absent_objects(self, digests: Iterable[bytes]) -> set[bytes]:
        """Return those of these objects that you must still send. No addresses are made for them."""
        answer = self._ask(api_path("files", "missing"), MissingQuery([item.hex() for item in digests]), MissingAnswer)
        return {bytes.fromhex(text) for text in answer.missing}

    def missing_objects(self, sizes: Mapping[bytes, int]) -> MissingAnswer:
        query = MissingQuery([digest.hex() for digest in sizes], list(sizes.values()))
        return self._ask(api_path("files", "missing"), query, MissingAnswer)

    def send_objects(self, parts: tuple[bytes, ...], *, on_sent: Callable[[int], None] | None = None) -> None:
        path = api_path("files", "objects")
        request = Request("POST", path, parts, {"Content-Type": MEDIA}, repeatable=True, on_sent=on_sent)
        self._answer(self._send(request), StoredObjects)

    def reader(self, job: str, root: bytes) -> ReadObjects:
        """Return a function that reads objects of one tree of a job."""
        path = api_path("jobs", job, "files", "objects")

        def read(digests: Sequence[bytes], *, is_read_by_server: bool = False) -> Iterator[Frame]:
            names = [digest.hex() for digest in digests]
            query = ObjectsQuery(root.hex(), names, is_read_by_server=is_read_by_server)
            request = Request("POST", path, msgspec.json.encode(query), {"Accept": MEDIA}, repeatable=True)
            return decode_frames(self._transport.pieces(request, timeout_s=OBJECTS_TIMEOUT_S))

        return read

    def _ask(self, path: str, query: object, kind: type[T]) -> T:
        request = Request("POST", path, msgspec.json.encode(query), repeatable=True)
        return self._answer(self._send(request), kind)

    def _send(self, request: Request) -> bytes:
        return self._transport.send(request, timeout_s=OBJECTS_TIMEOUT_S, retry_s=self._transport.patience_s)


class ReadObjects(Protocol):
    """Reads objects of one tree from the server, as frames. No retries. `is_read_by_server`: without addresses."""

    def __call__(self, digests: Sequence[bytes], *, is_read_by_server: bool = False) -> Iterator[Frame]: ...
