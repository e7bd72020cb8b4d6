"""Reports undecodable messages as the caller's mistake. gRPC itself would say UNKNOWN, which clients retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from switchyard.errors import Malformed


class UndecodableMessage:
    """Stands for a request that could not be decoded."""


def message_reader(kind: Any) -> Callable[[bytes], Any]:
    """Make a reader for one class of messages."""

    def read(body: bytes) -> Any:
        try:
            return kind.FromString(body)
        except DecodeError:
            return UndecodableMessage()

    return read


def refuse_undecodable(request: object) -> None:
    if isinstance(request, UndecodableMessage):
        raise Malformed("These bytes are no message of this call.", next_step="Is the client of another version?")
