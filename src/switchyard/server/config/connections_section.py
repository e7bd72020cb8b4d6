"""The config section `connections`: how many a server keeps open, and how long a silent or slow one stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

FILES_KEPT = 256  # open files reserved for the database, logs, the config and the standard streams
HTTP_MAX = 20_000  # without a setting; a connection costs about 10 kB
GRPC_MAX = 4_000
CONNECTIONS_MIN = 16  # a server with fewer connections is of no use

TimeoutSeconds = Annotated[int, Meta(ge=1, le=3600)]
ConnectionCount = Annotated[int, Meta(ge=CONNECTIONS_MIN, le=1_000_000)]


class ConnectionsSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of connections, so that silent and slow connections do not keep others out.

    `http_max`: HTTP connections in all; without a value, as many as the limit of open files allows. `address_max`:
    connections of one address (IPv6: of one /64 network), by default half of `http_max`; behind a proxy all users share
    its address. Half of them are kept free of waits and event streams. `grpc_max`: gRPC connections in all. Above a
    limit, the connection that has been silent for longest is closed; if none is silent, the new connection is answered
    503.

    `head_s`: the time for the head of a request, and for a TLS handshake. `idle_s`: the time between two requests.
    `body_s`: in each such period at least `slow_bytes` of a body must arrive, and of a large body enough to arrive
    completely within 600 s. `answer_s`: in each such period a client must read at least `slow_bytes` of its answer.
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
    """The section with all defaults filled in."""

    http_max: int
    address_max: int
    grpc_max: int
    head_s: int
    idle_s: int
    body_s: int
    answer_s: int
    slow_bytes: int


def connection_bounds(section: ConnectionsSection, open_files: int) -> ConnectionBounds:
    """Fill in defaults that depend on the limit of open files, and lower settings that exceed it."""
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
