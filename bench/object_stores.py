"""Stores of objects: the folder, S3 by obstore, and S3 by a plain thin client, on one real S3 server."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from tests.s3_service import REGION, S3Server, s3_running

from bench.table import Table
from switchyard.features.buckets.bucket_store import UploadSigner
from switchyard.features.buckets.signed_uploads import S3Keys, signed_address
from switchyard.model.files.file_tree import CHUNK_BYTES, hash_of
from switchyard.model.files.files import SignedUpload
from switchyard.server.config.storage_section import open_store
from switchyard.storage.object_store import ObjectStore, StorageOptions, check_content

LOADS = ((4096, 400), (CHUNK_BYTES, 12))  # bytes of an object, objects
THREADS = (1, 16)
TURNS = 3
ABOUT = (
    "Objects in a second, written and read, by so many threads; the S3 server (versitygw) is on the same machine and "
    "disk. *Thin*: Python's http.client with a connection for each thread, and our own signature. Both clients send a "
    f"SHA-256 that the server checks, and check what they read. The best of {TURNS} turns."
)
Objects = list[tuple[bytes, bytes]]
Call = Callable[[bytes, bytes], object]


class ThinClient:
    """The least that talks S3: one request for each call, no retries."""

    def __init__(self, base: str, keys: S3Keys) -> None:
        self._base, self._keys = base, keys
        self._signer = UploadSigner(base, REGION, keys)
        self._local = threading.local()

    def put(self, digest: bytes, data: bytes) -> None:
        check_content(digest, data)
        address = self._signer.sign(digest.hex(), digest, len(data), valid_s=60)
        assert address is not None, "keys that are written down can sign"
        self._send("PUT", address, data)

    def get(self, digest: bytes) -> bytes:
        at = datetime.now(UTC)
        url = f"{self._base}/{digest.hex()}"
        url = signed_address("GET", url, headers={}, keys=self._keys, region=REGION, at=at, valid_s=60)
        data = self._send("GET", SignedUpload(url), None)
        check_content(digest, data)
        return data

    def _send(self, method: str, request: SignedUpload, body: bytes | None) -> bytes:
        parts = urlsplit(request.url)
        if not hasattr(self._local, "line"):
            self._local.line = http.client.HTTPConnection(parts.netloc, timeout=60)
        line: http.client.HTTPConnection = self._local.line
        line.request(method, f"{parts.path}?{parts.query}", body=body, headers=request.headers)
        answer = line.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return data


def measure(folder: Path) -> list[Table]:
    columns = ["object", "threads", "folder put", "folder get", "obstore put", "obstore get", "thin put", "thin get"]
    table = Table("Stores of objects", ABOUT, [*columns, "obstore/thin put", "obstore/thin get"])
    with s3_running() as server:
        for size, count in LOADS:
            for threads in THREADS:
                _measure_row(table, server, folder / f"{size}-{threads}", size=size, count=count, threads=threads)
    return [table]


def _measure_row(table: Table, server: S3Server, folder: Path, *, size: int, count: int, threads: int) -> None:
    rates: dict[str, list[float]] = {"folder": [0.0, 0.0], "obstore": [0.0, 0.0], "thin": [0.0, 0.0]}
    keys = S3Keys(server.access_key, server.secret_key)
    for turn in range(TURNS):
        noise = random.Random(turn * 1000 + threads)
        objects = [(hash_of(data), data) for data in (noise.randbytes(size) for _ in range(count))]
        stores: dict[str, ObjectStore | ThinClient] = {
            "folder": open_store(StorageOptions(), data=folder / str(turn)),
            "obstore": open_store(server.options(server.create_bucket()), data=folder),
            "thin": ThinClient(f"{server.endpoint}/{server.create_bucket()}/files", keys),
        }
        for name, store in stores.items():
            put: Call = store.put
            best = rates[name]
            best[0] = max(best[0], _rate(put, objects, threads))
            best[1] = max(best[1], _rate(lambda digest, _, get=store.get: get(digest), objects, threads))
    ratios = [f"{rates['obstore'][way] / rates['thin'][way]:.2f}" for way in (0, 1)]
    label = "4 kB" if size == 4096 else "8 MiB"
    table.add(label, threads, *(f"{rate:,.0f}" for pair in rates.values() for rate in pair), *ratios)


def _rate(call: Call, objects: Objects, threads: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda pair: call(*pair), objects):
            pass
    return len(objects) / (time.perf_counter() - began)
