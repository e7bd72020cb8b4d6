"""Large bodies, piece by piece: every packing, cut anywhere, and bombs that end at the bound."""

from __future__ import annotations

import gzip
import hashlib
import zlib

import pytest

from switchyard.errors import Malformed, TooLarge
from switchyard.server.http.bodies.upload import ENCODINGS, Upload

BODY = b'{"nodes": 400}' * 1000
PACKED = gzip.compress(BODY, mtime=0)  # without the time, so that every worker names the tests alike


def uploaded(packed: bytes, encoding: str, *, step: int = 1000, most: int = 2**20, packed_max: int = 2**20) -> bytes:
    upload = Upload(ENCODINGS[encoding], unpacked_max=most, packed_max=packed_max)
    for start in range(0, len(packed), step):
        upload.feed(packed[start : start + step])
    source = upload.end()
    unpacked = gzip.decompress(source.body)
    assert (source.size, source.hash) == (len(unpacked), hashlib.sha256(unpacked).hexdigest())
    return unpacked


@pytest.mark.parametrize("step", [1, 7, 10**9])
@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("identity", BODY), ("gzip", PACKED), ("deflate", zlib.compress(BODY))],
    ids=["identity", "gzip", "deflate"],
)
def test_every_packing_cut_anywhere(encoding: str, packed: bytes, step: int) -> None:
    assert uploaded(packed, encoding, step=step) == BODY


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
def test_nothing_is_nothing_or_cut_off(encoding: str) -> None:
    if encoding == "identity":
        assert uploaded(b"", encoding) == b""
    else:
        with pytest.raises(Malformed, match="cut off"):
            uploaded(b"", encoding)


def test_bomb_ends_at_the_bound() -> None:
    bomb = gzip.compress(bytes(64 * 2**20))
    assert len(bomb) < 100_000
    with pytest.raises(TooLarge, match="unpacked"):
        uploaded(bomb, "gzip", step=10**9)


def test_what_does_not_pack_ends_at_the_other_bound() -> None:
    noise = b"".join(hashlib.sha256(bytes([n % 256, n >> 8])).digest() for n in range(4000))
    with pytest.raises(TooLarge, match="packed"):
        uploaded(noise, "identity", packed_max=10_000)


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (PACKED[:-9], "cut off"),
        (PACKED + b"more", "after the end"),
        (PACKED * 2, "after the end"),
        (b"not packed at all", "cannot be unpacked"),
        (PACKED[:50] + b"\xff" * 100, "cannot be unpacked|cut off"),
    ],
    ids=["cut", "more", "twice", "plain", "spoilt"],
)
def test_broken_packing(packed: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        uploaded(packed, "gzip")
