"""The config section `connections`: how many a server keeps open, and how long a silent or slow one stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

FILES_KEPT = 256  # open files for the database, logs, the config and the standard streams
HTTP_MAX = 20_000  # without a setting; a connection costs about 10 kB
GRPC_MAX = 4_000
CONNECTIONS_MIN = 16  # connections: below that a server is of no use

TimeoutSeconds = Annotated[int, Meta(ge=1, le=3600)]
ConnectionCount = Annotated[int, Meta(ge=CONNECTIONS_MIN, le=1_000_000)]


class ConnectionsSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of connections, so that silent and slow ones lock nobody out.

    `http_max`: HTTP connections in all; without a value, as many as the limit of open files allows. `address_max`: of
    one address (IPv6: of one /64 network), by default half of `http_max`; behind a proxy all users share its address.
    `grpc_max`: gRPC connections in all. Above a bound the connection that is silent for longest is closed; if none is
    silent, the new one is answered 503.

    `head_s`: for the head of a request, and for a TLS handshake. `idle_s`: without a request between two of them.
    `body_s`: in each such span at least `slow_bytes` of a body must arrive. `answer_s`: in each such span a client must
    take at least `slow_bytes` of its answer.
    """

    http_max: ConnectionCount | None = None
    address_max: ConnectionCount | None = None
    grpc_max: ConnectionCount | None = None
    head_s: TimeoutSeconds = 10
    idle_s: TimeoutSeconds = 120
    body_s: TimeoutSeconds = 20
    answer_s: TimeoutSeconds = 30
    slow_bytes: Annotated[int, Meta(ge=1, le=2**20)] = 16 * 1024


@dataclass(frozen=True)
class ConnectionBounds:
    """The section with every number known."""

    http_max: int
    address_max: int
    grpc_max: int
    head_s: int
    idle_s: int
    body_s: int
    answer_s: int
    slow_bytes: int


def connection_bounds(section: ConnectionsSection, open_files: int) -> ConnectionBounds:
    """Fill in what follows from the limit of open files. A setting above it is lowered: there is no file for more."""
    usable = max(4 * CONNECTIONS_MIN, open_files - FILES_KEPT)
    http_max = min(section.http_max or HTTP_MAX, usable * 3 // 4)
    return ConnectionBounds(
        http_max=http_max,
        address_max=min(section.address_max or max(CONNECTIONS_MIN, http_max // 2), http_max),
        grpc_max=min(section.grpc_max or GRPC_MAX, usable // 4),
        head_s=section.head_s,
        idle_s=section.idle_s,
        body_s=section.body_s,
        answer_s=section.answer_s,
        slow_bytes=section.slow_bytes,
    )
