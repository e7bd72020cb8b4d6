"""Decides which connections stay open, by counts in total and by address. Knows no HTTP.

The gate admits a new connection while another one can be closed: above a bound, the connection that has been silent for
longest is closed. A connection with a request in work is never closed for a new one, so parked polls of agents stay.

uvicorn's `limit_concurrency` is no substitute: it answers 503 to the newest request, whoever holds the connections, and
has no time limit for a first request or a slow body. A proxy in front can do both, but many servers have none.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Protocol

from switchyard.server.config.connections_section import ConnectionBounds
from switchyard.server.refusal_log import REFUSALS

TICK_S = 1.0  # time is counted in ticks: a server that was paused first reads what clients sent meanwhile
IPV6_PREFIX_BITS = 64  # the network of one customer of a provider


class ConnectionPhase(Enum):
    """What the server waits for on a connection."""

    SILENT = "silent"  # for a handshake, a request, or the remainder of a request that is already answered
    BODY = "body"  # for the remainder of a body that a request in work reads
    BUSY = "busy"  # for its own work


class Closable(Protocol):
    """A connection that speaks HTTP."""

    def check(self, now: int) -> None:
        """Close it if its time is over."""

    def evict(self) -> None:
        """Close it now, for another one."""


@dataclass(eq=False, slots=True)
class ClientConnection:
    """One connection. `since`: the tick at which its phase began."""

    address: str
    sock: socket.socket
    since: int
    protocol: Closable | None = None  # none until the handshake is done
    phase: ConnectionPhase = ConnectionPhase.SILENT
    is_counted: bool = True


@dataclass(slots=True)
class _AddressCount:
    count: int = 0
    silent: OrderedDict[ClientConnection, None] = field(default_factory=OrderedDict)


class ConnectionGate:
    """All HTTP connections of a server. Used on its loop alone."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.bounds = bounds
        self.now = 0  # ticks
        self._peers: dict[ClientConnection, None] = {}
        self._addresses: dict[str, _AddressCount] = {}
        self._silent: OrderedDict[ClientConnection, None] = OrderedDict()
        self._bodies: OrderedDict[ClientConnection, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def admit(self, host: str, sock: socket.socket) -> ClientConnection | None:
        """Admit a new connection. None: there is no room, and no silent connection to close."""
        address = client_network(host)
        known = self._addresses.get(address)
        if known is not None and known.count >= self.bounds.address_max:
            if not self._evict(known.silent, "too many connections of one address"):
                return None
        elif len(self._peers) >= self.bounds.http_max and not self.make_room():
            return None
        peer = ClientConnection(address, sock, self.now)
        entry = self._addresses.setdefault(address, _AddressCount())
        entry.count += 1
        self._peers[peer] = None
        self._silent[peer] = entry.silent[peer] = None
        return peer

    def refused(self, host: str, sock: socket.socket) -> ClientConnection:
        """Log that a connection was not admitted. It is closed at once and not counted."""
        address = client_network(host)
        REFUSALS.note("connection refused", address=address, reason="too many connections")
        return ClientConnection(address, sock, self.now, is_counted=False)

    def make_room(self) -> bool:
        """Close the connection that is silent for longest, else the one that has been sending a body for longest."""
        return self._evict(self._silent, "too many connections") or self._evict(self._bodies, "too many connections")

    def _evict(self, candidates: OrderedDict[ClientConnection, None], reason: str) -> bool:
        victim = next(iter(candidates), None)
        if victim is None:
            return False
        self.leave(victim)
        REFUSALS.note("connection closed", address=victim.address, reason=reason, phase=victim.phase.value)
        if victim.protocol is not None:
            victim.protocol.evict()
        else:
            with contextlib.suppress(OSError):  # during its handshake; its transport notices
                victim.sock.shutdown(socket.SHUT_RDWR)
        return True

    def move(self, peer: ClientConnection, phase: ConnectionPhase) -> None:
        """Begin a phase. If it is the current phase, it starts again."""
        if not peer.is_counted:
            return
        peer.since = self.now
        self._unlist(peer)
        peer.phase = phase
        if phase is ConnectionPhase.SILENT:
            self._silent[peer] = self._addresses[peer.address].silent[peer] = None
        elif phase is ConnectionPhase.BODY:
            self._bodies[peer] = None

    def leave(self, peer: ClientConnection) -> None:
        """The connection is over, or about to be."""
        if not peer.is_counted:
            return
        peer.is_counted = False
        self._unlist(peer)
        del self._peers[peer]
        entry = self._addresses[peer.address]
        entry.count -= 1
        if not entry.count:
            del self._addresses[peer.address]

    def _unlist(self, peer: ClientConnection) -> None:
        if peer.phase is ConnectionPhase.SILENT:
            del self._silent[peer]
            del self._addresses[peer.address].silent[peer]
        elif peer.phase is ConnectionPhase.BODY:
            del self._bodies[peer]

    def tick(self) -> None:
        """Close connections that are silent or slow for too long. Called every TICK_S."""
        self.now += 1
        for protocol in self._protocols():
            protocol.check(self.now)
        REFUSALS.flush()

    def _protocols(self) -> Iterator[Closable]:
        return iter([peer.protocol for peer in self._peers if peer.protocol is not None])


def reset_on_close(sock: socket.socket) -> None:
    """Make a close drop unsent bytes: the kernel would keep them for minutes."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@lru_cache(maxsize=4096)
def client_network(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
