"""Signed addresses of an object store: PUT and GET without our token. It knows addresses, not objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from switchyard.errors import NotFound, Unavailable, YardError
from switchyard.sdk.transport.transport import Request, Transport

OBJECT_TIMEOUT_S = 120.0  # of silence, not of the whole transfer
PUT_TIMEOUT_S = 30.0  # of silence; then the object goes through the server
PUT_RETRY_S = 5.0
MEDIA_DEFAULT = "application/octet-stream"
CHECK_STORE = (
    "Check that this machine can reach the object store. If it must not, the server's operator can set "
    "`storage.direct: false`: then files pass through the server."
)
CHECK_CLOCKS = (
    "Try again. If it stays so, the server's operator should compare the clocks of the server and the object store, "
    "and raise `storage.signed_s`."
)


class SignedStore:
    """Sends and reads objects at signed addresses, over kept connections. Threads may share it.

    Certificates are checked by the system's CAs, or those of SSL_CERT_FILE: the store is not the server.
    """

    def __init__(self, *, retry_s: float) -> None:
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._transports: dict[str, Transport] = {}

    def put(
        self, url: str, headers: Mapping[str, str], data: bytes, *, on_sent: Callable[[int], None] | None = None
    ) -> None:
        """Send one object. Any YardError: send it through the server; if it is transient, also those to come."""
        transport, target = self._place(url)
        signed = {name.title(): text for name, text in headers.items()}  # one spelling: the transport adds its own
        sent = {"Content-Type": MEDIA_DEFAULT, **signed}
        request = Request("PUT", target, data, sent, repeatable=True, on_sent=on_sent)
        transport.send(request, timeout_s=PUT_TIMEOUT_S, retry_s=min(self._retry_s, PUT_RETRY_S))

    def get(self, url: str) -> bytes:
        """Read one object. Raises NotFound, or Unavailable if a new address may help: addresses expire."""
        transport, target = self._place(url)
        try:
            return transport.send(Request("GET", target, headers={"Accept": "*/*"}, repeatable=True))
        except NotFound as exc:
            raise NotFound(
                f"The object store at {transport.url} does not have an object of these files any more.",
                next_step="Tell the server's operator: something else removed it.",
            ) from exc
        except YardError as exc:
            if exc.transient:
                raise Unavailable(f"The object store cannot be used now: {exc.detail}", next_step=CHECK_STORE) from exc
            # Stores answer 403 or 400 for an address whose time is over, each with another code in another form.
            raise Unavailable(
                f"The object store at {transport.url} refuses the address that the server gave.",
                next_step=CHECK_CLOCKS,
            ) from exc

    def close(self) -> None:
        with self._lock:
            for transport in self._transports.values():
                transport.close()

    def _place(self, url: str) -> tuple[Transport, str]:
        """Return the transport of the address's host, and the path with the signature."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Unavailable("The server gave an address of its object store that is no HTTP address.")
        origin = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            transport = self._transports.get(origin)
            if transport is None:
                transport = Transport(origin, None, timeout_s=OBJECT_TIMEOUT_S, retry_s=self._retry_s)
                self._transports[origin] = transport
        return transport, parts.path + (f"?{parts.query}" if parts.query else "")
