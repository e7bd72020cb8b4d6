"""Reads a large body in pieces: decompresses each within a bound, and keeps the body compressed. Knows no graphs."""

from __future__ import annotations

import hashlib
import zlib

from switchyard.errors import Malformed, TooLarge
from switchyard.server.grpc.limiter import current_caller
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, ClientGone, header
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.cluster.graphs import PackedGraph

STEP_BYTES = 2**20  # decompressed at once: a decompression bomb is noticed within one step
GZIP = 16 + zlib.MAX_WBITS
ENCODINGS = {"": None, "identity": None, "gzip": GZIP, "x-gzip": GZIP, "deflate": zlib.MAX_WBITS}
COMPRESSION_LEVEL = 1  # graphs are repetitive: more effort saves little


async def read_upload(server: ServerRuntime, scope: AsgiScope, receive: AsgiReceive) -> PackedGraph:
    """Read the body. Each piece is decompressed on a thread."""
    bounds = server.settings.bounds
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > bounds.graph_bytes:
        raise TooLarge(f"The body has {int(declared)} bytes; the most here is {bounds.graph_bytes}.")
    upload = Upload(_encoding(scope), unpacked_max=bounds.graph_bytes, packed_max=bounds.graph_packed_bytes)
    with server.limiter.uploads.hold(current_caller.get()):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            if piece := message.get("body", b""):
                await server.workers.in_thread(upload.feed, piece)
            if not message.get("more_body"):
                return await server.workers.in_thread(upload.end)


def _encoding(scope: AsgiScope) -> int | None:
    word = (header(scope, b"content-encoding") or b"").decode("latin-1").strip().lower()
    if word not in ENCODINGS:
        raise Malformed(f"Content-Encoding {word[:40]!r} is not known here; known: gzip, deflate, identity.")
    return ENCODINGS[word]


class Upload:
    """Takes compressed bytes and makes one gzip member, with the size and the hash of its content."""

    def __init__(self, encoding: int | None, *, unpacked_max: int, packed_max: int) -> None:
        self._unpacker = None if encoding is None else zlib.decompressobj(encoding)
        self._packer = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, GZIP)
        self._unpacked_max = unpacked_max
        self._packed_max = packed_max
        self._hash = hashlib.sha256()
        self._packed = bytearray()
        self._size = 0

    def feed(self, piece: bytes) -> None:
        if self._unpacker is None:
            self._keep(piece)
            return
        while piece:
            if self._unpacker.eof:
                raise Malformed("There is more after the end of the packed body.")
            try:
                self._keep(self._unpacker.decompress(piece, STEP_BYTES))
            except zlib.error as exc:
                raise Malformed(f"The body cannot be unpacked: {exc}.") from exc
            piece = self._unpacker.unconsumed_tail or self._unpacker.unused_data

    def end(self) -> PackedGraph:
        if self._unpacker is not None:
            self._keep(self._unpacker.flush(STEP_BYTES))
            if not self._unpacker.eof:
                raise Malformed("The packed body is cut off.")
        self._packed += self._packer.flush()
        return PackedGraph(bytes(self._packed), self._size, self._hash.hexdigest())

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._unpacked_max:
            raise TooLarge(f"The body is over {self._unpacked_max} bytes unpacked.")
        self._hash.update(part)
        self._packed += self._packer.compress(part)
        if len(self._packed) > self._packed_max:
            raise TooLarge(f"The body is over {self._packed_max} bytes packed.")
