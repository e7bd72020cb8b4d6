"""One HTTP request to a listed host: bounded in time and in bytes, to an address that was checked. Follows nothing."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from switchyard.errors import PolicyRefused, TooLarge, Unavailable
from switchyard.features.images.registry.listed import ListedRegistry

PIECE_BYTES = 64 * 1024
URL_CHARS_MAX = 8192  # blobs have signed addresses with long queries
USER_AGENT = "switchyard"


class RegistrySlow(Unavailable):
    """A registry took longer than its time."""


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    status: int
    headers: Mapping[str, str]  # by their names in small letters
    body: bytes


@dataclass(frozen=True, slots=True)
class Address:
    """Where to send a request: `host` with its port if it is not the scheme's own."""

    host: str
    target: str

    @classmethod
    def read(cls, url: str, *, is_plain_http: bool) -> Address | None:
        """None: it is no address that is asked at all."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return None
        scheme = "http" if is_plain_http else "https"
        if parts.scheme != scheme or not parts.hostname or "@" in parts.netloc or len(url) > URL_CHARS_MAX:
            return None
        own = 80 if is_plain_http else 443
        shown = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(shown if port in (None, own) else f"{shown}:{port}", _target(parts))


def get(
    registry: ListedRegistry, address: Address, headers: Mapping[str, str], *, bytes_max: int, deadline: float
) -> RegistryAnswer:
    """Ask once. An answer of more than `bytes_max` is refused, mostly before it is read."""
    host, port = _split(address.host, is_plain_http=registry.is_plain_http)
    try:
        with _connected(registry, host, port, deadline=deadline) as line, contextlib.ExitStack() as answers:
            connection = http.client.HTTPConnection(host)
            connection.sock = line
            answers.callback(connection.close)
            connection.putrequest("GET", address.target, skip_host=True, skip_accept_encoding=True)
            fixed = {
                "Host": address.host,
                "User-Agent": USER_AGENT,
                "Accept-Encoding": "identity",
                "Connection": "close",
            }
            for name, value in {**fixed, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            body = _read(answer, address.host, bytes_max=bytes_max, deadline=deadline)
            return RegistryAnswer(answer.status, named, body)
    except ssl.SSLCertVerificationError as exc:
        raise PolicyRefused(
            f"The certificate of the registry {address.host} is not accepted: {exc.verify_message}.",
            next_step="If it is its own authority's, an administrator names that in `ca` of images.registries.",
        ) from exc
    except (OSError, http.client.HTTPException, ValueError) as exc:
        if time.monotonic() >= deadline:
            raise _too_slow(address.host) from exc
        raise Unavailable(
            f"The registry {address.host} does not answer as one: {str(exc)[:200] or type(exc).__name__}.",
            next_step="Try again. If it stays so, look whether it runs. A digest that was read before needs none.",
        ) from exc


@contextmanager
def _connected(registry: ListedRegistry, host: str, port: int, *, deadline: float) -> Iterator[socket.socket]:
    """A connection that is cut at the deadline, whatever it waits for: a slow peer may send a byte now and then."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise _too_slow(host)
    address = resolve_once(host, port, is_private=registry.is_private, timeout_s=left_s)
    lines = [socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))]
    cut = threading.Timer(max(0.1, deadline - time.monotonic()), _cut, [lines])
    cut.daemon = True
    cut.start()
    try:
        if registry.tls is not None:
            secure = registry.tls.wrap_socket(lines[0], server_hostname=host, do_handshake_on_connect=False)
            lines.append(secure)
            secure.do_handshake()
        yield lines[-1]
    finally:
        cut.cancel()
        lines[-1].close()


def _cut(lines: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        lines[-1].shutdown(socket.SHUT_RDWR)


def _read(answer: http.client.HTTPResponse, host: str, *, bytes_max: int, deadline: float) -> bytes:
    if answer.getheader("Content-Encoding", "identity") != "identity":
        raise http.client.HTTPException("a compressed answer, which was not asked for")
    length = answer.getheader("Content-Length", "")
    if length.isdecimal() and int(length) > bytes_max:
        raise _too_large(host, bytes_max)
    body = bytearray()
    while piece := answer.read1(PIECE_BYTES):
        body += piece
        if len(body) > bytes_max:
            raise _too_large(host, bytes_max)
    if time.monotonic() >= deadline:  # the connection was cut, which looks like its end
        raise _too_slow(host)
    if length.isdecimal() and len(body) != int(length):
        raise http.client.HTTPException("the answer was cut off")
    return bytes(body)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _split(host: str, *, is_plain_http: bool) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    return parts.hostname or "", parts.port or (80 if is_plain_http else 443)


def _too_slow(host: str) -> RegistrySlow:
    return RegistrySlow(
        f"The registry {host} took too long.",
        next_step="Try again, or name the image by a digest that was read before.",
    )


def _too_large(host: str, bytes_max: int) -> TooLarge:
    return TooLarge(
        f"The registry {host} answers with more than {bytes_max:,} bytes, where metadata has few.",
        next_step="Check that the name is an image's, and that its artifacts are small.",
    )


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
