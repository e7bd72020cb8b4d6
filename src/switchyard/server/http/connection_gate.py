"""Which connections stay open: counts in all and by address, the silent ones oldest first. It knows no HTTP.

The gate lets a new connection in as long as another one can go: above a bound the connection that is silent for longest
is closed. A connection with a request in work is never closed for a new one, so the parked polls of agents stay.
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

from switchyard.server.connections_section import ConnectionBounds
from switchyard.server.refusal_log import REFUSALS

TICK_S = 1.0  # time is counted in ticks: a server that was paused finds its clients' bytes before it counts on
IPV6_PREFIX_BITS = 64  # bits: what one customer of a provider has


class ConnectionPhase(Enum):
    """What the server waits for on a connection."""

    SILENT = "silent"  # for a request: its handshake, its head, the next one, or the rest of one that is answered
    BODY = "body"  # for the rest of a body that a request in work reads
    BUSY = "busy"  # for its own work


class Closable(Protocol):
    """A connection that speaks HTTP."""

    def check(self, now: int) -> None:
        """Close it if its time is over."""

    def evict(self) -> None:
        """Close it now, for another one."""


@dataclass(eq=False, slots=True)
class ClientConnection:
    """One connection from its accept to its end. `since`: the tick at which its phase began."""

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
        """Count a new connection in; none: there is no room, and nobody silent who could go."""
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
        """Note that a connection was not admitted. It is closed at once, and not counted."""
        address = client_network(host)
        REFUSALS.note("connection refused", address=address, reason="too many connections")
        return ClientConnection(address, sock, self.now, is_counted=False)

    def make_room(self) -> bool:
        """Close the connection that is silent for longest, else the one that sends its body for longest."""
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
            with contextlib.suppress(OSError):  # in its handshake; its transport notices
                victim.sock.shutdown(socket.SHUT_RDWR)
        return True

    def move(self, peer: ClientConnection, phase: ConnectionPhase) -> None:
        """A phase begins. The same one again begins anew."""
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
        """Called every TICK_S: close what is silent or slow for too long."""
        self.now += 1
        for protocol in self._protocols():
            protocol.check(self.now)
        REFUSALS.flush()

    def _protocols(self) -> Iterator[Closable]:
        return iter([peer.protocol for peer in self._peers if peer.protocol is not None])


def reset_on_close(sock: socket.socket) -> None:
    """Drop what waits to be sent when the socket is closed: the kernel would keep it for minutes."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@lru_cache(maxsize=4096)
def client_network(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
