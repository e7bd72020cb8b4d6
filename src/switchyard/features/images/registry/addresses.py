"""Turns the name of a listed host into one address, once: what is checked is what is connected to."""

from __future__ import annotations

import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor

from switchyard.errors import PolicyRefused, Unavailable

RESOLVERS = 4  # threads: a name server that does not answer holds a few of them, and nothing else
_resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="image-registry-names")


def resolve_once(host: str, port: int, *, is_private: bool, timeout_s: float) -> tuple[str, int]:
    """The address to connect to. Refuses a name any of whose addresses is not a public one, unless it may be."""
    try:
        rows = _resolvers.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM).result(timeout_s)
    except TimeoutError as exc:
        raise Unavailable(f"The name of the registry {host} was not resolved within {timeout_s:.0f} s.") from exc
    except (OSError, UnicodeError) as exc:
        raise Unavailable(f"The name of the registry {host} cannot be resolved: {exc}.") from exc
    addresses = [str(row[4][0]) for row in rows]
    for address in addresses:
        if not is_private and not is_public(address):
            raise PolicyRefused(
                f"The registry {host} has the address {address}, which is not a public one (rule images.registries).",
                next_step="If that is right, an administrator sets `private: true` for it in the server's config.",
            )
    return addresses[0], port


def is_public(address: str) -> bool:
    """Whether an address is of the public internet: no loopback, private, link-local, multicast or reserved one."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if parsed in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)))
    return parsed.is_global and not parsed.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
